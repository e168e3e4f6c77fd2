//! A pod without a cluster: a PID namespace of its own, processes put into it from outside, as a runtime does, with the
//! mount by which the kubelet names containers, and a stand-in for pilot-agent. Needs root.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_mins(1);

/// A PID namespace with a pause process.
pub(crate) struct Pod {
    pause: Child,
    folder: TempDir,
    starts: AtomicU32,
}

/// A container: its init's parent outside the namespace, which reaps it.
pub(crate) struct Container {
    parent: Child,
}

/// A container that ends when it is told to.
pub(crate) struct Payload {
    pub(crate) container: Container,
    gate: PathBuf,
}

/// A running shim, with its log line by line.
pub(crate) struct Shim {
    pub(crate) container: Container,
    lines: mpsc::Receiver<String>,
    log: String,
}

impl Pod {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in ["termination-log", "hosts"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let hosts = format!("mount --bind {}/hosts /etc/hosts && exec sleep infinity", folder.path().display());
        let pause = Command::new("unshare")
            .args(["--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &hosts])
            .spawn()
            .expect("unshare runs");
        let pod = Self { pause, folder, starts: AtomicU32::new(0) };
        let is_up = || fs::read_to_string(format!("/proc/{}/comm", pod.init())).is_ok_and(|comm| comm == "sleep\n");
        until("the PID namespace (as root)", is_up);
        pod
    }

    /// The pause process, as seen from outside.
    fn init(&self) -> String {
        let id = self.pause.id();
        fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default().trim().to_owned()
    }

    /// A file that containers can share.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Announces the start of a container, as the kubelet does.
    pub(crate) fn announce(&self) {
        let hosts = self.file("hosts");
        fs::write(&hosts, "10.244.0.9 pod\n").unwrap();
        fs::set_permissions(&hosts, fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// Starts a container that runs a shell script.
    pub(crate) fn start(&self, name: &str, script: &str) -> Container {
        Container { parent: self.enter(Some(&self.next_start(name)), &["sh", "-c", script]).spawn().unwrap() }
    }

    /// Starts a container that ends with this code once it is told to: see [`Payload::finish`].
    pub(crate) fn payload(&self, name: &str, code: u8) -> Payload {
        let gate = self.file(&format!("gate-{}", self.starts.load(Ordering::Relaxed)));
        let wait = format!("while ! [ -e {} ]; do sleep 0.01; done; exit {code}", gate.display());
        Payload { container: self.start(name, &wait), gate }
    }

    /// Starts a process in a container that runs: the same mounts, a later start.
    pub(crate) fn exec(&self, container: &str, script: &str) -> Container {
        let start = self.last_start(container);
        Container { parent: self.enter(Some(&start), &["sh", "-c", script]).spawn().unwrap() }
    }

    pub(crate) fn shim(&self, arguments: &[&str]) -> Shim {
        let start = self.next_start("aux-shim");
        self.run_shim(Some(&start), arguments)
    }

    /// A shim as the init of the proxy's container, with a shell script for pilot-agent.
    pub(crate) fn supervise(&self, arguments: &[&str], agent: &str) -> Shim {
        let start = self.next_start("istio-proxy");
        // The log ends with the shim, also where that leaves the agent behind.
        let agent = format!("exec 2>/dev/null; {agent}");
        self.run_shim(Some(&start), &[&["supervise"], arguments, &["--", "sh", "-c", &agent]].concat())
    }

    /// A shim in a pod whose containers have no names.
    pub(crate) fn shim_without_names(&self, arguments: &[&str]) -> Shim {
        self.run_shim(None, arguments)
    }

    /// Starts a process that has no container's name.
    pub(crate) fn start_unnamed(&self, command: &[&str]) -> Container {
        Container { parent: self.enter(None, command).spawn().unwrap() }
    }

    fn run_shim(&self, start: Option<&str>, arguments: &[&str]) -> Shim {
        let mut words = vec![env!("CARGO_BIN_EXE_aux-shim")];
        words.extend(arguments);
        let mut parent = self.enter(start, &words).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(parent.stderr.take().unwrap());
        let (send, lines) = mpsc::channel();
        thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut shim = Shim { container: Container { parent }, lines, log: String::new() };
        shim.until_logged("watching");
        shim
    }

    /// A command in the namespace, started from outside. With a `start`, it has the mount that names its container.
    fn enter(&self, start: Option<&str>, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--pid", "--mount", "--target", &self.init()]);
        if let Some(start) = start {
            let seen_at = self.file("termination-log");
            let mount = format!("mount --bind {start} {} && exec \"$@\"", seen_at.display());
            command.args(["unshare", "--mount", "sh", "-c", &mount, "sh"]);
        }
        command.args(words).stdin(Stdio::null()).process_group(0);
        command
    }

    /// A file like the one that the kubelet makes for each start of a container.
    fn next_start(&self, container: &str) -> String {
        let id = self.starts.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.path().join("pods/8a0b/containers").join(container);
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("{id:08x}"));
        fs::write(&file, "").unwrap();
        file.display().to_string()
    }

    fn last_start(&self, container: &str) -> String {
        let folder = self.folder.path().join("pods/8a0b/containers").join(container);
        let starts = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
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
    /// Ends the container's init with SIGKILL, as the kubelet or the kernel does. Its parent reaps it.
    pub(crate) fn kill(&self) {
        self.signal("KILL");
    }

    /// Sends a signal to the container's init.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.parent.id();
        until("the container's init", || {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            let sent =
                children.split_whitespace().next().map(|pid| Command::new("kill").args(["-s", name, pid]).status());
            sent.is_some_and(|status| status.is_ok_and(|status| status.success()))
        });
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("a container's end", || {
            status = self.parent.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Payload {
    /// Lets it end, and waits until it has been reaped.
    pub(crate) fn finish(mut self) {
        fs::write(&self.gate, "").unwrap();
        self.container.wait();
    }
}

impl Shim {
    /// Waits for a line of the log with this text.
    pub(crate) fn until_logged(&mut self, text: &str) {
        self.until_logged_times(1, text);
    }

    /// Waits until the log has so many lines with this text.
    pub(crate) fn until_logged_times(&mut self, times: usize, text: &str) {
        let began = Instant::now();
        while self.log.matches(text).count() < times {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(line) => self.log += &(line + "\n"),
                Err(error) => panic!("no {text:?} in the log ({error}):\n{}", self.log),
            }
        }
    }

    /// Keeps the shim from running, as a busy node does, until it is resumed.
    pub(crate) fn suspend(&self) {
        self.container.signal("STOP");
    }

    pub(crate) fn resume(&self) {
        // nsenter stops with its child, and continues it with itself.
        let nsenter = self.container.parent.id().to_string();
        Command::new("kill").args(["-s", "CONT", &nsenter]).status().unwrap();
        self.container.signal("CONT");
    }

    /// Waits for the shim's end. Returns its exit code and its whole log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        loop {
            // The log ends when the process does.
            match self.lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(line) => self.log += &(line + "\n"),
                Err(mpsc::RecvTimeoutError::Disconnected) => return (self.container.wait().code(), self.log),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("the shim does not end:\n{}", self.log),
            }
        }
    }

    pub(crate) fn kill(self) -> String {
        self.container.kill();
        self.end().1
    }
}

/// A stand-in for pilot-agent: a container in the pod, and a port outside it that ends the container when it is told to.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    container: Arc<Mutex<Option<Container>>>,
}

impl Proxy {
    /// Answers at once, and ends after `drain`.
    pub(crate) fn start(pod: &Pod, drain: Duration) -> Self {
        Self::start_after(pod, drain, |_, _| {})
    }

    /// Does something that needs the port before the container starts.
    pub(crate) fn start_after(pod: &Pod, drain: Duration, first: impl FnOnce(u16, &Pod)) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        first(port, pod);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let container = Arc::new(Mutex::new(Some(pod.start("istio-proxy", "exec sleep 1000"))));
        let (heard, ends) = (asked.clone(), container.clone());
        accept_all(listener, move |line| {
            let is_quit = is_quit(&line);
            heard.lock().unwrap().push(line);
            if is_quit {
                thread::sleep(drain);
                if let Some(container) = ends.lock().unwrap().as_ref() {
                    container.kill();
                }
            }
        });
        Self { port, asked, container }
    }

    /// The request lines so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Ends the proxy though nobody asked.
    pub(crate) fn crash(&self) {
        self.container.lock().unwrap().as_ref().unwrap().kill();
    }

    /// Starts the container again, as the kubelet does.
    pub(crate) fn start_again(&self, pod: &Pod) {
        let mut container = self.container.lock().unwrap();
        container.as_mut().unwrap().wait();
        *container = Some(pod.start("istio-proxy", "exec sleep 1000"));
    }
}

/// Accepts every request, and tells of each by its first line.
pub(crate) fn accept_all(listener: TcpListener, mut told: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 512];
            let read = stream.read(&mut request).unwrap_or_default();
            let line = String::from_utf8_lossy(&request[..read]).lines().next().unwrap_or_default().to_owned();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK");
            told(line);
        }
    });
}

pub(crate) fn is_quit(line: &str) -> bool {
    line.starts_with("POST /quitquitquit ")
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
