//! Reads `/proc` of a pod with a shared PID namespace: which processes are containers, and their names.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::str::SplitWhitespace;
use std::time::Duration;

use nix::libc::{ENOENT, ESRCH};

/// Names a start of a container, by the path of its termination log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerInstance {
    pub(crate) container: String,
    /// Eight hexadecimal digits.
    pub(crate) id: String,
}

/// Describes a process without a parent in the pod (PPID 0): a container's init process, or an exec session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RootProcess {
    pub(crate) pid: i32,
    /// Clock ticks between the machine's boot and its start, 100 a second on every machine.
    pub(crate) started: u64,
    /// True if it has executed a command since it was forked. A runtime forks, and executes the container's command last.
    pub(crate) has_executed: bool,
}

impl RootProcess {
    /// Returns true if this is the same process: PID and start time together identify it.
    pub(crate) fn is(self, other: Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

/// Summarizes what the threads of a process do.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Activity {
    /// True if any thread is not sleeping.
    pub(crate) runs: bool,
    /// True if any thread waits for a disk, as while its program is being loaded.
    pub(crate) waits_for_disk: bool,
    /// The CPU time of all threads.
    pub(crate) cpu: Duration,
}

/// Reads the process file system.
#[derive(Debug)]
pub(crate) struct Procfs {
    root: PathBuf,
}

/// The pod's pause process in a shared PID namespace.
const PAUSE_PID: i32 = 1;
/// Bytes that are read of a mount table: that of a container may have all of the node's mounts before its own.
const MOUNTINFO_LIMIT: u64 = 16 << 20;
/// Flag of a process that has executed nothing since it was forked (`PF_FORKNOEXEC` in `include/linux/sched.h`).
const PF_FORKNOEXEC: u32 = 0x40;

impl Procfs {
    /// Reads below `root`, which is `/proc` except in tests.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the last PID that was allocated in this PID namespace.
    pub(crate) fn last_pid(&self) -> Option<i32> {
        fs::read_to_string(self.root.join("loadavg")).ok()?.split_whitespace().last()?.parse().ok()
    }

    /// Lists the processes without a parent in the namespace, except pause. `/proc` lists no other threads than the first.
    pub(crate) fn roots(&self) -> Vec<RootProcess> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let processes = pids.filter(|&pid| pid != PAUSE_PID).filter_map(|pid| Some((pid, self.stat(pid).ok()??)));
        processes
            .filter(|(_, stat)| stat.parent == 0)
            .map(|(pid, stat)| RootProcess { pid, started: stat.started, has_executed: stat.has_executed })
            .collect()
    }

    /// Returns true if this process has executed a command since it was forked. False if it has been reaped.
    pub(crate) fn has_executed(&self, pid: i32, started: u64) -> bool {
        self.stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.started == started && stat.has_executed))
    }

    /// Returns the container of a process; `None` while its mounts are missing or gone.
    pub(crate) fn instance_of(&self, pid: i32) -> Option<ContainerInstance> {
        self.instance(&pid.to_string())
    }

    /// Returns a process' start time, in clock ticks since boot; `None` if it has been reaped.
    pub(crate) fn start_of(&self, pid: i32) -> io::Result<Option<u64>> {
        Ok(self.stat(pid)?.map(|stat| stat.started))
    }

    /// Returns true if the process with this PID and start time has been reaped. Read errors count as still alive.
    pub(crate) fn is_gone(&self, pid: i32, started: u64) -> bool {
        self.start_of(pid).is_ok_and(|found| found != Some(started))
    }

    /// Returns the program of a container's first process, if it was started with this argument.
    pub(crate) fn program_with_argument(&self, pid: i32, argument: &str) -> Option<String> {
        let Ok(Some(Stat { parent: 0, .. })) = self.stat(pid) else { return None };
        let cmdline = self.read(pid, "cmdline").ok()??;
        let mut words = cmdline.split(|&byte| byte == 0);
        let program = String::from_utf8_lossy(words.next()?).into_owned();
        words.any(|word| word == argument.as_bytes()).then_some(program)
    }

    /// Returns what the threads of a process do; `None` if that cannot be read.
    pub(crate) fn activity(&self, pid: i32) -> Option<Activity> {
        let mut activity = Activity::default();
        for task in fs::read_dir(self.root.join(pid.to_string()).join("task")).ok()?.flatten() {
            let (state, ticks) = state_and_ticks(&fs::read(task.path().join("stat")).ok()?)?;
            activity.runs |= state != b'S';
            activity.waits_for_disk |= state == b'D';
            activity.cpu += Duration::from_millis(10 * ticks);
        }
        Some(activity)
    }

    /// Returns the instance of this process' own container; `None` if `/proc` does not show containers' names here.
    pub(crate) fn own_instance(&self) -> Option<ContainerInstance> {
        self.instance("self")
    }

    fn stat(&self, pid: i32) -> io::Result<Option<Stat>> {
        let Some(stat) = self.read(pid, "stat")? else { return Ok(None) };
        Stat::parse(&stat).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads a file of a process; `None` if the process has been reaped.
    fn read(&self, pid: i32, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.root.join(pid.to_string()).join(name)) {
            Err(error) if [Some(ENOENT), Some(ESRCH)].contains(&error.raw_os_error()) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Returns the container whose mounts a process has; `None` where it is exiting, or has been reaped.
    fn instance(&self, process: &str) -> Option<ContainerInstance> {
        let mounts = File::open(self.root.join(process).join("mountinfo")).ok()?.take(MOUNTINFO_LIMIT);
        instance_in(BufReader::new(mounts))
    }
}

/// Returns the fields of a `stat` from the state on. The command before them is in parentheses and may hold any byte.
fn fields_from_state(stat: &[u8]) -> Option<SplitWhitespace<'_>> {
    let end_of_command = stat.iter().rposition(|&byte| byte == b')')?;
    Some(std::str::from_utf8(&stat[end_of_command + 1..]).ok()?.split_whitespace())
}

/// Holds the fields of `/proc/PID/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    started: u64,
    has_executed: bool,
}

impl Stat {
    fn parse(stat: &[u8]) -> Option<Self> {
        let mut fields = fields_from_state(stat)?;
        let parent = fields.nth(1)?.parse().ok()?;
        let flags: u32 = fields.nth(4)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        Some(Self { parent, started, has_executed: flags & PF_FORKNOEXEC == 0 })
    }
}

/// Parses a thread's state, and its CPU time in clock ticks, user's and kernel's, of its `stat`.
fn state_and_ticks(stat: &[u8]) -> Option<(u8, u64)> {
    let mut fields = fields_from_state(stat)?;
    let state = fields.next()?.as_bytes()[0];
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some((state, user + kernel))
}

/// Returns the container with these mounts. The kubelet mounts the termination log from
/// `…/pods/POD-UID/containers/NAME/ID` for any `terminationMessagePath`.
fn instance_in(mounts: impl BufRead) -> Option<ContainerInstance> {
    // Line by line: the table may be as large as the shim's memory.
    mounts.split(b'\n').map_while(Result::ok).find_map(|line| {
        let line = String::from_utf8_lossy(&line);
        let mut parts = line.split(' ').nth(3)?.rsplit('/');
        let (id, container) = (parts.next()?, parts.next()?);
        let shape = parts.next()? == "containers" && parts.nth(1)? == "pods";
        let is_id = id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (shape && is_id).then(|| ContainerInstance { container: container.to_owned(), id: id.to_owned() })
    })
}

/// Writes a process file system of plain files.
#[cfg(test)]
pub(crate) mod fake {
    use std::fs;
    use std::path::Path;

    /// Returns a short mount table of a container's process.
    pub(crate) fn mounts_of(container: &str, id: &str) -> String {
        format!("1 2 8:1 /var/lib/kubelet/pods/8a0b/containers/{container}/{id} /dev/termination-log rw - ext4 x rw\n")
    }

    pub(crate) fn stat(pid: i32, command: &str, parent: i32, started: u64) -> String {
        format!("{pid} ({command}) S {parent} 7 7 0 -1 4194560 1 0 0 0 60 13 0 0 20 0 1 0 {started} 123 45 1 1 1\n")
    }

    pub(crate) fn process(root: &Path, pid: i32, parent: i32, started: u64, mounts: &str) {
        let directory = root.join(pid.to_string());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("stat"), stat(pid, "x", parent, started)).unwrap();
        fs::write(directory.join("mountinfo"), mounts).unwrap();
    }

    /// Replaces the flags of a process that started at 200 + its PID.
    pub(crate) fn set_flags(root: &Path, pid: i32, flags: u32) {
        let path = root.join(pid.to_string()).join("stat");
        let started = 200 + u64::from(pid.unsigned_abs());
        fs::write(path, stat(pid, "x", 0, started).replace("4194560", &flags.to_string())).unwrap();
    }

    /// Makes this the last allocated PID.
    pub(crate) fn set_last_pid(root: &Path, pid: i32) {
        fs::write(root.join("loadavg"), format!("0.00 0.01 0.05 1/123 {pid}\n")).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::fake::stat;
    use super::*;

    const MOUNTS: &str = "\
1201 1100 0:61 / / ro,relatime master:337 - overlay overlay rw,lowerdir=/l
1203 1201 0:64 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
1209 1201 254:0 /var/lib/kubelet/pods/8a0b/etc-hosts /etc/hosts rw,relatime - ext4 /dev/vda rw
1210 1203 254:0 /var/lib/kubelet/pods/8a0b/containers/main/1f0c22aa /dev/termination-log rw,relatime - ext4 /dev/vda rw
";

    fn instance(container: &str, id: &str) -> ContainerInstance {
        ContainerInstance { container: container.to_owned(), id: id.to_owned() }
    }

    #[test]
    fn container_is_named_by_its_termination_log() {
        let moved = MOUNTS.replace("/dev/termination-log", "/tmp/elsewhere");
        let host_path =
            "1 2 254:0 /var/lib/kubelet/pods/8a0b/volumes/containers/main/1f0c22aa /x rw - ext4 /dev/vda rw";
        let cases = [
            ("as usual", MOUNTS, Some(instance("main", "1f0c22aa"))),
            ("moved by terminationMessagePath", &moved, Some(instance("main", "1f0c22aa"))),
            (
                "another kubelet root",
                "1 2 8:1 /data/k/pods/u/containers/a-b/00000000 /x rw - ext4 x rw",
                Some(instance("a-b", "00000000")),
            ),
            ("not mounted yet", "1203 1201 0:64 / /dev rw - tmpfs tmpfs rw", None),
            ("something alike in a volume", host_path, None),
            ("no id", "1 2 8:1 /pods/u/containers/main/termination /x rw - ext4 x rw", None),
            ("nothing", "", None),
        ];
        for (name, mounts, expected) in cases {
            assert_eq!(instance_in(mounts.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn command_may_hold_any_bytes() {
        let expected = Some(Stat { parent: 0, started: 4711, has_executed: true });
        for command in ["sh", "a b", "a) S 9 (b", ")"] {
            assert_eq!(Stat::parse(stat(12, command, 0, 4711).as_bytes()), expected, "{command}");
        }
        // The kernel cuts names at 15 bytes, in the middle of a character.
        let mut cut = b"12 (".to_vec();
        cut.extend_from_slice(&"обработка".as_bytes()[..15]);
        cut.extend_from_slice(&stat(12, "", 0, 4711).as_bytes()[4..]);
        assert_eq!(Stat::parse(&cut), expected);
        let zombie = stat(12, "sh", 0, 4711).replace(") S", ") Z");
        assert_eq!(Stat::parse(zombie.as_bytes()), expected, "its other threads may run");
        assert_eq!(Stat::parse(b"12 (sh"), None);
        assert_eq!(Stat::parse(b"12 (sh) S"), None);
    }

    #[test]
    fn kernel_tells_what_has_executed_nothing_since_its_fork() {
        let procfs = Procfs::new("/proc");
        let has_executed = |pid: i32| procfs.has_executed(pid, procfs.start_of(pid).unwrap().unwrap());
        let mut cat = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(has_executed(cat.id().cast_signed()), "spawn returns once the command is executed");
        drop(cat.stdin.take());
        cat.wait().unwrap();
        // A shell forks for what is in parentheses, and executes nothing there: `read` is its own.
        let mut sh = std::process::Command::new("sh")
            .args(["-c", "(read _); true"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let children = format!("/proc/{0}/task/{0}/children", sh.id());
        let forked = loop {
            let children = fs::read_to_string(&children).unwrap();
            if let Some(child) = children.split_whitespace().next() {
                break child.parse().unwrap();
            }
        };
        assert!(!has_executed(forked));
        drop(sh.stdin.take());
        sh.wait().unwrap();
    }

    #[test]
    fn roots_are_processes_without_parent_in_the_pod() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid, parent, started, mounts: &str| fake::process(root.path(), pid, parent, started, mounts);
        process(1, 0, 100, "");
        process(9, 0, 200, MOUNTS); // main's init process
        process(10, 9, 210, MOUNTS); // its child
        process(50, 0, 400, ""); // being created by the runtime
        fake::set_last_pid(root.path(), 50);
        let procfs = Procfs::new(root.path());
        assert_eq!(procfs.last_pid(), Some(50));
        let mut pids: Vec<i32> = procfs.roots().into_iter().map(|root| root.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [9, 50]);
        assert_eq!(procfs.instance_of(9), Some(instance("main", "1f0c22aa")));
        assert_eq!(procfs.instance_of(50), None);
    }

    #[test]
    fn root_process_is_found_by_whole_argument() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid: i32, parent, cmdline: &str| {
            fake::process(root.path(), pid, parent, 100, "");
            fs::write(root.path().join(format!("{pid}/cmdline")), cmdline.replace(' ', "\0")).unwrap();
        };
        process(7, 0, "collector -t trial -s-db db:6789 ");
        process(8, 0, "aux-shim start-after --argument=-s-db -- sh ");
        process(9, 7, "collector -s-db db:6789 ");
        process(10, 0, ""); // a zombie
        process(11, 0, "collector -s-db"); // it has overwritten the end of its arguments
        let procfs = Procfs::new(root.path());
        let found = [7, 8, 9, 10, 11, 12].map(|pid| procfs.program_with_argument(pid, "-s-db").is_some());
        assert_eq!(found, [true, false, false, false, true, false]);
        assert_eq!(procfs.program_with_argument(7, "-s-db").as_deref(), Some("collector"));
    }

    #[test]
    fn activity_is_that_of_all_threads() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid: i32, states: &[&str]| {
            let tasks = root.path().join(format!("{pid}/task"));
            for (thread, state) in states.iter().enumerate() {
                let thread = tasks.join(thread.to_string());
                fs::create_dir_all(&thread).unwrap();
                fs::write(thread.join("stat"), stat(pid, "x) R", 0, 1).replace("R) S", &format!("R) {state}")))
                    .unwrap();
            }
        };
        process(1, &["S", "S"]);
        process(2, &["S", "R"]);
        process(3, &["D"]);
        let procfs = Procfs::new(root.path());
        let cpu = Duration::from_millis(730);
        let activity = |runs, waits_for_disk, cpu| Some(Activity { runs, waits_for_disk, cpu });
        let expected =
            [activity(false, false, 2 * cpu), activity(true, false, 2 * cpu), activity(true, true, cpu), None];
        assert_eq!([1, 2, 3, 4].map(|pid| procfs.activity(pid)), expected);
    }

    #[test]
    fn name_is_found_behind_the_nodes_mounts() {
        let root = tempfile::tempdir().unwrap();
        let node_mounts = "1203 1201 0:64 / /a/mount/of/the/node rw - tmpfs tmpfs rw\n".repeat(3000);
        fake::process(root.path(), 9, 0, 200, &format!("{node_mounts}{MOUNTS}"));
        assert_eq!(Procfs::new(root.path()).instance_of(9), Some(instance("main", "1f0c22aa")));
    }
}
