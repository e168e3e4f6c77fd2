//! A pod without a cluster: a PID namespace, and processes that are put into it from outside, as a runtime does, with the
//! mount by which the kubelet names containers. Needs root.

mod proxy;
mod shim;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contract::version::Version;
use tempfile::TempDir;

pub(crate) use proxy::{ACCEPTED, Agent, Proxy, closed_port, listen, serve};
pub(crate) use shim::Shim;

/// Options of a shim that awaits one container, or two.
pub(crate) const NEVER: [&str; 2] = ["--await=main", "--restart-policy=Never"];
pub(crate) const ON_FAILURE: [&str; 2] = ["--await=main", "--restart-policy=OnFailure"];
pub(crate) const BOTH: [&str; 3] = ["--await=main", "--await=metrics", "--restart-policy=Never"];
/// The requests to a proxy that was not asked to quit.
pub(crate) const NOTHING: [&str; 0] = [];

/// Time limit of every wait. Emulated machines are slow.
const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

/// Holds a PID namespace with a pause process.
pub(crate) struct Pod {
    pause: Child,
    directory: TempDir,
    starts: AtomicU32,
}

/// Holds a container: the parent of its init process, outside the namespace, which reaps it.
pub(crate) struct Container {
    parent: Child,
}

/// Holds a container that ends when a file appears.
pub(crate) struct Payload {
    pub(crate) container: Container,
    gate: PathBuf,
}

impl Pod {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Containers run as other users, too.
        set_mode(directory.path(), 0o755);
        for file in ["termination-log", "hosts"] {
            fs::write(directory.path().join(file), "").unwrap();
        }
        // Only the beginning of a mount table is read, and this machine may have the mounts of a whole node.
        let others = r"umount -l $(awk '$5 ~ /\/(pods|containerd)\// { print $5 }' /proc/self/mountinfo) 2>/dev/null";
        let hosts = directory.path().join("hosts");
        let script = format!("{others}; mount --bind {} /etc/hosts && exec sleep infinity", hosts.display());
        let pause = Command::new("unshare")
            .args(["--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script])
            .spawn()
            .expect("unshare runs");
        let pod = Self { pause, directory, starts: AtomicU32::new(0) };
        pod.report_nothing();
        symlink("..data/annotations", pod.file("pod/annotations")).unwrap();
        let is_up = || fs::read_to_string(format!("/proc/{}/comm", pod.init())).is_ok_and(|comm| comm == "sleep\n");
        until("the PID namespace (as root)", is_up);
        pod
    }

    /// Returns the pause process' PID outside the namespace.
    fn init(&self) -> String {
        first_child(self.pause.id()).unwrap_or_default()
    }

    /// Returns the path of a file that containers can share.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Announces the start of a container, as the kubelet does.
    fn announce(&self) {
        let hosts = self.file("hosts");
        fs::write(&hosts, "10.244.0.9 pod\n").unwrap();
        set_mode(&hosts, 0o644);
    }

    /// Writes the kubelet's report of the exit codes, as the kubelet writes a volume of the downward API.
    pub(crate) fn report(&self, codes: &str) {
        self.annotate(&format!("istio-aux.io/ended={codes:?}\n"));
    }

    /// Writes that report where the kernel does not tell exit codes, as the kubelet does in any case.
    pub(crate) fn report_unknown(&self, codes: &str) {
        if !kernel_reports_codes() {
            self.report(codes);
        }
    }

    /// Takes the report back.
    pub(crate) fn report_nothing(&self) {
        self.annotate("note=\"x\"\n");
    }

    fn annotate(&self, text: &str) {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let (directory, written) = (self.file("pod"), format!("..{number}"));
        fs::create_dir_all(directory.join(&written)).unwrap();
        fs::write(directory.join(&written).join("annotations"), text).unwrap();
        symlink(&written, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    }

    /// Starts a container that runs a command.
    pub(crate) fn run(&self, name: &str, command: &[&str]) -> Container {
        self.announce();
        let container = Container { parent: self.enter(Some(&self.next_start(name)), command).spawn().unwrap() };
        if self.file("hold").exists() {
            container.init();
        }
        container
    }

    /// Starts a container that runs a shell script as root.
    pub(crate) fn start(&self, name: &str, script: &str) -> Container {
        self.run(name, &["sh", "-c", script])
    }

    /// Starts a container that ends with this code when it may: see [`Payload::finish`].
    pub(crate) fn payload(&self, name: &str, code: u8) -> Payload {
        self.payload_that(name, "", code)
    }

    /// Starts a payload that repeats a script until it ends, at most 100 times a second.
    pub(crate) fn payload_that(&self, name: &str, repeats: &str, code: u8) -> Payload {
        let gate = self.file(&format!("gate-{}", self.starts.load(Ordering::Relaxed)));
        let wait = format!("while ! [ -e {} ]; do {repeats} sleep 0.01; done; exit {code}", gate.display());
        Payload { container: self.start(name, &wait), gate }
    }

    /// Starts a process in a container that has been started: the same mounts, a later start.
    pub(crate) fn exec(&self, container: &str, script: &str) -> Container {
        let start = self.last_start(container);
        Container { parent: self.enter(Some(&start), &["sh", "-c", script]).spawn().unwrap() }
    }

    /// Starts a shim that watches this pod. `arguments` come after the proxy's port.
    pub(crate) fn watch(&self, proxy: &Proxy, arguments: &[&str]) -> Shim {
        self.watch_under(&[], proxy, arguments)
    }

    /// Starts such a shim by another program.
    pub(crate) fn watch_under(&self, program: &[&str], proxy: &Proxy, arguments: &[&str]) -> Shim {
        let copy = self.file("aux-shim");
        // The original may be in a directory that the program's user cannot enter.
        copy_program(SHIM, &copy);
        let (port, copy) = (proxy.port.to_string(), copy.display().to_string());
        let annotations = self.annotations();
        let command = [program, &[&copy, "watch", "--status-port", &port, &annotations], arguments].concat();
        let mut shim = Shim::start(self.enter(Some(&self.next_start("aux-shim")), &command));
        // What starts before its first scan may be anything.
        if proxy.has_started() && !arguments.contains(&"--report-only") {
            shim.until_logged("container started container=istio-proxy");
        }
        shim
    }

    /// Starts such a shim as this user.
    pub(crate) fn watch_as(&self, user: &str, proxy: &Proxy, arguments: &[&str]) -> Shim {
        self.watch_under(&as_user(user), proxy, arguments)
    }

    /// Starts a shim that watches this pod, with containers that have no names.
    pub(crate) fn watch_without_names(&self, proxy: &Proxy, arguments: &[&str]) -> Shim {
        let port = proxy.port.to_string();
        let annotations = self.annotations();
        Shim::start(self.enter(None, &[&[SHIM, "watch", "--status-port", &port, &annotations], arguments].concat()))
    }

    /// Starts a shim as the init process of the proxy's container, with a stand-in for pilot-agent that has set its traps.
    pub(crate) fn supervise(&self, agent: &Agent, arguments: &[&str]) -> Shim {
        // The log ends with the shim, also where that leaves the agent behind.
        let script = format!("exec 2>/dev/null; {}", agent.script);
        let annotations = self.annotations();
        let options = ["supervise", "--status-port", &agent.port, &annotations];
        let command = [&[SHIM], &options[..], arguments, &["--", "sh", "-c", &script]].concat();
        let shim = Shim::start(self.enter(Some(&self.next_start("istio-proxy")), &command));
        until("the agent's traps", || self.file("agent-ready").exists());
        shim
    }

    fn annotations(&self) -> String {
        format!("--annotations={}", self.file("pod/annotations").display())
    }

    /// Returns a command that enters the namespace. With a `start`, it has the mount that names its container.
    fn enter(&self, start: Option<&str>, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--pid", "--mount", "--target", &self.init()]);
        if let Some(start) = start {
            let mounted_at = self.file("termination-log");
            let hold = format!("while [ -e {} ]; do sleep 0.01; done", self.file("hold").display());
            let mount = format!("{hold}; mount --bind {start} {} && exec \"$@\"", mounted_at.display());
            command.args(["unshare", "--mount", "sh", "-c", &mount, "sh"]);
        }
        command.args(words).stdin(Stdio::null()).process_group(0);
        command
    }

    /// Has containers created from now on wait before their mounts, as a runtime creates them before it starts them.
    fn hold(&self) {
        fs::write(self.file("hold"), "").unwrap();
    }

    /// Starts the created containers.
    fn unhold(&self) {
        fs::remove_file(self.file("hold")).unwrap();
    }

    /// Creates a file like the one that the kubelet creates for each start of a container.
    fn next_start(&self, container: &str) -> String {
        let id = self.starts.fetch_add(1, Ordering::Relaxed);
        let directory = self.directory.path().join("pods/8a0b/containers").join(container);
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("{id:08x}"));
        fs::write(&file, "").unwrap();
        file.display().to_string()
    }

    fn last_start(&self, container: &str) -> String {
        let directory = self.directory.path().join("pods/8a0b/containers").join(container);
        let starts = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        starts.max().unwrap().display().to_string()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.pause.kill();
        let _ = self.pause.wait();
    }
}

impl Container {
    /// Returns the init process' PID outside the namespace.
    pub(crate) fn init(&self) -> String {
        until_some("the container's init process", || first_child(self.parent.id()))
    }

    /// Returns the init process' PID in the pod.
    pub(crate) fn pid_in_pod(&self) -> String {
        status_field(&self.init(), "NSpid").split_whitespace().last().unwrap().to_owned()
    }

    /// Ends the container's init process with SIGKILL, as the kubelet or the kernel does. Its parent reaps it.
    pub(crate) fn kill(&self) {
        self.signal("KILL");
    }

    /// Sends a signal to the container's init process.
    pub(crate) fn signal(&self, name: &str) {
        send(name, &self.init());
    }

    /// Stops the process that reaps the container's init process.
    pub(crate) fn stop_parent(&self) {
        send("STOP", &self.parent.id().to_string());
        self.until_parent_stopped();
    }

    /// Continues that process, once it has stopped: a signal to continue is lost before.
    pub(crate) fn continue_parent(&self) {
        self.until_parent_stopped();
        send("CONT", &self.parent.id().to_string());
    }

    fn until_parent_stopped(&self) {
        let parent = self.parent.id().to_string();
        until("the parent's stop", || status_field(&parent, "State").starts_with('T'));
    }

    /// Returns true if its init process has not been reaped.
    pub(crate) fn is_running(&mut self) -> bool {
        self.parent.try_wait().unwrap().is_none()
    }

    /// Waits until the container's init process has the mount that names its container.
    pub(crate) fn until_mounted(&self) {
        let mounts = format!("/proc/{}/mountinfo", self.init());
        until("the mount", || {
            fs::read_to_string(&mounts).is_ok_and(|mounts| mounts.contains("/pods/8a0b/containers/"))
        });
    }

    /// Waits until the container's init process has ended, reaped or not.
    pub(crate) fn until_zombie(&self) {
        let pid = self.init();
        until("the end of the init process", || status_field(&pid, "State").starts_with('Z'));
    }

    /// Waits until the container's init process has been reaped.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until_some("a container's end", || self.parent.try_wait().unwrap())
    }
}

impl Payload {
    /// Lets it end.
    pub(crate) fn release(&self) {
        fs::write(&self.gate, "").unwrap();
    }

    /// Lets it end, and waits until it has been reaped.
    pub(crate) fn finish(mut self) {
        self.release();
        self.container.wait();
    }
}

pub(crate) const SHIM: &str = env!("CARGO_BIN_EXE_aux-shim");

/// Creates a pod whose proxy runs.
pub(crate) fn pod_with_proxy() -> (Pod, Proxy) {
    let pod = Pod::new();
    let proxy = Proxy::started(&pod);
    (pod, proxy)
}

/// Creates a pod whose starts are announced, with a shim that has observed the proxy's.
pub(crate) fn announced(arguments: &[&str]) -> (Pod, Proxy, Shim) {
    let pod = Pod::new();
    let mut proxy = Proxy::new();
    let mut shim = pod.watch(&proxy, arguments);
    shim.observe(&pod, "istio-proxy", || proxy.start(&pod));
    (pod, proxy, shim)
}

/// Returns true if the kernel reports exit codes to other processes than the parent: Linux 6.15.
pub(crate) fn kernel_reports_codes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    Version::parse(&release).unwrap().reports_exit_codes()
}

/// Returns the exit code of a sibling container as the shim logs it.
pub(crate) fn code(code: i32) -> String {
    if kernel_reports_codes() { format!("code={code}") } else { "code=unknown".to_owned() }
}

/// Returns a field of `/proc/PID/status`; empty if it does not exist.
pub(crate) fn status_field(pid: &str, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits for a value.
fn until_some<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(began.elapsed() < WAIT_TIMEOUT, "waited {WAIT_TIMEOUT:?} for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Copies a program by another process. Linux runs no program that a process has open for writing (ETXTBSY), and the descriptor of a copy
/// made here would be inherited by the children that other tests start meanwhile.
pub(crate) fn copy_program(from: &str, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success(), "cp {from} {}", to.display());
}

/// Returns the words that run a command as another user and group.
pub(crate) fn as_user(user: &str) -> [&str; 6] {
    ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
}

/// Sends a signal, by name or number.
pub(crate) fn send(signal: &str, pid: &str) {
    assert!(Command::new("kill").args(["-s", signal, pid]).status().unwrap().success(), "kill -s {signal} {pid}");
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

fn first_child(pid: u32) -> Option<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next().map(str::to_owned)
}
