//! Reads `/proc` of a pod with a shared PID namespace: which processes are containers, and their names.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::str::SplitWhitespace;
use std::time::Duration;

use nix::libc::{EINVAL, ENOENT, ESRCH};

/// Names a start of a container, by the directory of its termination log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerInstance {
    pub(crate) container: String,
    /// Eight hexadecimal digits.
    pub(crate) id: String,
}

/// Describes a process without a parent in the pod (PPID 0): a container's init process, or an exec session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RootProcess {
    pub(crate) pid: i32,
    /// Clock ticks between the machine's boot and its start, 100 a second on every machine.
    pub(crate) started: u64,
    /// True if it has any mounts. An exiting process has none.
    pub(crate) has_mounts: bool,
    /// `None` if its mounts are not a container's: the runtime is still creating it.
    pub(crate) instance: Option<ContainerInstance>,
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

/// Classifies a PID.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// A PID without an entry in `/proc`: the process has been reaped, or is just being created.
    Absent,
    /// A child of another process, or a thread.
    Other,
    Root(RootProcess),
}

/// Reads the process file system.
#[derive(Debug)]
pub(crate) struct Procfs {
    root: PathBuf,
}

/// The pod's pause process in a shared PID namespace.
const PAUSE_PID: i32 = 1;
/// Bytes that are read of a mount table. A container's is a tenth of it; before the runtime has set it up, it may hold
/// thousands of the node's mounts.
const MOUNTINFO_LIMIT: u64 = 64 << 10;

impl Procfs {
    /// Reads below `root`, which is `/proc` except in tests.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the last PID that was allocated in this PID namespace.
    pub(crate) fn last_pid(&self) -> Option<i32> {
        fs::read_to_string(self.root.join("loadavg")).ok()?.split_whitespace().last()?.parse().ok()
    }

    /// Lists all PIDs of the namespace except pause's.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid| pid != PAUSE_PID).collect()
    }

    /// Returns a process' start time, in clock ticks since boot; `None` if it has been reaped.
    pub(crate) fn start_of(&self, pid: i32) -> io::Result<Option<u64>> {
        Ok(self.parent_and_start(pid)?.map(|(_, started)| started))
    }

    /// Returns true if the process with this PID and start time has been reaped. Read errors count as still alive.
    pub(crate) fn is_gone(&self, pid: i32, started: u64) -> bool {
        self.start_of(pid).is_ok_and(|found| found != Some(started))
    }

    /// Classifies a PID. After an error, callers look it up again.
    pub(crate) fn look_up(&self, pid: i32) -> io::Result<Lookup> {
        let Some((parent, started)) = self.parent_and_start(pid)? else { return Ok(Lookup::Absent) };
        let Some(status) = self.read(pid, "status")? else { return Ok(Lookup::Absent) };
        if parent != 0 || !is_thread_group_leader(pid, &status) {
            return Ok(Lookup::Other);
        }
        let mounts = self.mounts_of(&pid.to_string())?;
        Ok(Lookup::Root(RootProcess { pid, started, has_mounts: !mounts.is_empty(), instance: instance_in(&mounts) }))
    }

    /// Returns the program of a container's first process, if it was started with this argument.
    pub(crate) fn program_with_argument(&self, pid: i32, argument: &str) -> Option<String> {
        let Ok(Some((0, _))) = self.parent_and_start(pid) else { return None };
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
        instance_in(&self.mounts_of("self").ok()?)
    }

    /// Returns an id that differs for each boot of the machine.
    pub(crate) fn boot_id(&self) -> String {
        let id = fs::read_to_string(self.root.join("sys/kernel/random/boot_id")).unwrap_or_default();
        id.trim().to_owned()
    }

    fn parent_and_start(&self, pid: i32) -> io::Result<Option<(i32, u64)>> {
        let Some(stat) = self.read(pid, "stat")? else { return Ok(None) };
        parent_and_start(&stat).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reads a file of a process; `None` if the process has been reaped.
    fn read(&self, pid: i32, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.root.join(pid.to_string()).join(name)) {
            Err(error) if [Some(ENOENT), Some(ESRCH)].contains(&error.raw_os_error()) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Reads the beginning of a process' mount table; empty if it has none.
    fn mounts_of(&self, process: &str) -> io::Result<String> {
        let mut mounts = Vec::new();
        match File::open(self.root.join(process).join("mountinfo")) {
            Ok(file) => file.take(MOUNTINFO_LIMIT).read_to_end(&mut mounts)?,
            // The process is exiting, or has been reaped.
            Err(error) if [Some(EINVAL), Some(ENOENT), Some(ESRCH)].contains(&error.raw_os_error()) => 0,
            Err(error) => return Err(error),
        };
        Ok(String::from_utf8_lossy(&mounts).into_owned())
    }
}

/// Returns the fields of a `stat` from the state on. The command before them is in parentheses and may hold any byte.
fn fields_from_state(stat: &[u8]) -> Option<SplitWhitespace<'_>> {
    let end_of_command = stat.iter().rposition(|&byte| byte == b')')?;
    Some(std::str::from_utf8(&stat[end_of_command + 1..]).ok()?.split_whitespace())
}

/// Parses parent PID and start time of `/proc/PID/stat`.
fn parent_and_start(stat: &[u8]) -> Option<(i32, u64)> {
    let mut fields = fields_from_state(stat)?;
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}

/// Parses a thread's state, and its CPU time in clock ticks, user's and kernel's, of its `stat`.
fn state_and_ticks(stat: &[u8]) -> Option<(u8, u64)> {
    let mut fields = fields_from_state(stat)?;
    let state = fields.next()?.as_bytes()[0];
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some((state, user + kernel))
}

/// Returns true for a process' first thread. `/proc` does not list the PIDs of other threads, but opens them.
fn is_thread_group_leader(pid: i32, status: &[u8]) -> bool {
    let status = String::from_utf8_lossy(status);
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group.is_some_and(|group| group.trim().parse() == Ok(pid))
}

/// Returns the container with these mounts. The kubelet mounts the termination log from
/// `…/pods/POD-UID/containers/NAME/ID` for any `terminationMessagePath`.
fn instance_in(mountinfo: &str) -> Option<ContainerInstance> {
    mountinfo.lines().find_map(|line| {
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
        fs::write(directory.join("status"), format!("Name:\tx\nTgid:\t{pid}\nPid:\t{pid}\n")).unwrap();
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
            assert_eq!(instance_in(mounts), expected, "{name}");
        }
    }

    #[test]
    fn command_may_hold_any_bytes() {
        for command in ["sh", "a b", "a) S 9 (b", ")"] {
            assert_eq!(parent_and_start(stat(12, command, 0, 4711).as_bytes()), Some((0, 4711)), "{command}");
        }
        // The kernel cuts names at 15 bytes, in the middle of a character.
        let mut cut = b"12 (".to_vec();
        cut.extend_from_slice(&"обработка".as_bytes()[..15]);
        cut.extend_from_slice(&stat(12, "", 0, 4711).as_bytes()[4..]);
        assert_eq!(parent_and_start(&cut), Some((0, 4711)));
        let zombie = stat(12, "sh", 0, 4711).replace(") S", ") Z");
        assert_eq!(parent_and_start(zombie.as_bytes()), Some((0, 4711)), "its other threads may run");
        assert_eq!(parent_and_start(b"12 (sh"), None);
        assert_eq!(parent_and_start(b"12 (sh) S"), None);
    }

    #[test]
    fn root_processes_are_leaders_without_parent_in_the_pod() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid, parent, started, mounts: &str| fake::process(root.path(), pid, parent, started, mounts);
        process(1, 0, 100, "");
        process(9, 0, 200, MOUNTS); // main's init process
        process(10, 9, 210, MOUNTS); // its child
        process(50, 0, 400, ""); // being created by the runtime
        process(11, 0, 205, MOUNTS); // a thread of main's init process
        fs::write(root.path().join("11/status"), "Name:\tx\nTgid:\t9\nPid:\t11\n").unwrap();
        fake::set_last_pid(root.path(), 50);
        let procfs = Procfs::new(root.path());
        assert_eq!(procfs.last_pid(), Some(50));
        let mut pids = procfs.pids();
        pids.sort_unstable();
        assert_eq!(pids, [9, 10, 11, 50]);
        let is_root = |lookup: &Lookup| matches!(lookup, Lookup::Root(_));
        let found: Vec<Lookup> = pids.into_iter().map(|pid| procfs.look_up(pid).unwrap()).filter(is_root).collect();
        let main = Some(instance("main", "1f0c22aa"));
        assert_eq!(
            found,
            [
                Lookup::Root(RootProcess { pid: 9, started: 200, has_mounts: true, instance: main }),
                Lookup::Root(RootProcess { pid: 50, started: 400, has_mounts: false, instance: None })
            ]
        );
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
    fn large_mount_table_is_read_in_part() {
        let root = tempfile::tempdir().unwrap();
        let node_mounts = "1203 1201 0:64 / /a/mount/of/the/node rw - tmpfs tmpfs rw\n".repeat(3000);
        fake::process(root.path(), 9, 0, 200, &format!("{node_mounts}{MOUNTS}"));
        let found = Procfs::new(root.path()).look_up(9).unwrap();
        let in_creation = RootProcess { pid: 9, started: 200, has_mounts: true, instance: None };
        assert_eq!(found, Lookup::Root(in_creation), "the runtime is still creating it");
    }
}
