//! `/proc` as a pod with a shared PID namespace shows it: which processes are containers, and their names.
//! Reads only; what is missing or odd is simply not a container.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// One start of a container. The kubelet gives each start an id of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The container's name in the pod.
    pub(crate) container: String,
    /// The kubelet's id of this start: eight hexadecimal digits.
    pub(crate) id: String,
}

/// A process that no process of the pod started: a container's init, or an exec session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TopProcess {
    pub(crate) pid: i32,
    /// Clock ticks between the machine's boot and this process' start.
    pub(crate) started: u64,
    /// `None` while the runtime has not given the process its mounts yet.
    pub(crate) attempt: Option<Attempt>,
}

impl TopProcess {
    /// When it started, as time since the machine's boot. The kernel tells it in hundredths of a second (`USER_HZ`),
    /// whatever its own tick is.
    pub(crate) fn started_at(&self) -> Duration {
        Duration::from_millis(self.started.saturating_mul(10))
    }
}

/// The process file system.
#[derive(Debug)]
pub(crate) struct Procfs {
    root: PathBuf,
}

/// PID 1 of a shared namespace is the pod's pause process.
const PAUSE: i32 = 1;

impl Procfs {
    /// Reads below `root`, which is `/proc` but in tests.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The last PID given out in our PID namespace: unchanged means that nothing was started.
    pub(crate) fn last_pid(&self) -> Option<i32> {
        fs::read_to_string(self.root.join("loadavg")).ok()?.split_whitespace().last()?.parse().ok()
    }

    /// All PIDs of the namespace but pause's.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid| pid != PAUSE).collect()
    }

    /// Whether there is a process of this number, reaped or not.
    pub(crate) fn exists(&self, pid: i32) -> bool {
        self.root.join(pid.to_string()).exists()
    }

    /// Those of the PIDs whose processes were started from outside the pod, earliest first: a container's init comes
    /// before the exec sessions in it.
    pub(crate) fn top_processes(&self, pids: impl IntoIterator<Item = i32>) -> Vec<TopProcess> {
        let mut found: Vec<_> = pids.into_iter().filter_map(|pid| self.top_process(pid)).collect();
        found.sort_by_key(|process| (process.started, process.pid));
        found
    }

    /// When a process started, in clock ticks since boot; `None` where there is none of this number, or only its remains.
    pub(crate) fn start_of(&self, pid: i32) -> Option<u64> {
        let stat = fs::read_to_string(self.root.join(pid.to_string()).join("stat")).ok()?;
        parent_and_start(&stat).map(|(_, started)| started)
    }

    /// The command's name, cut to 15 characters by the kernel.
    pub(crate) fn command(&self, pid: i32) -> Option<String> {
        Some(fs::read_to_string(self.root.join(pid.to_string()).join("comm")).ok()?.trim_end().to_owned())
    }

    /// Whether containers can be named here: our own mounts say so.
    pub(crate) fn names_containers(&self) -> bool {
        fs::read_to_string(self.root.join("self/mountinfo")).is_ok_and(|mounts| attempt_of(&mounts).is_some())
    }

    /// The id of this process' own start, as a container's: the kubelet's, or where there is none, the time of it.
    pub(crate) fn own_attempt(&self) -> String {
        let mounts = fs::read_to_string(self.root.join("self/mountinfo")).unwrap_or_default();
        let by_time = || self.start_of(std::process::id().cast_signed()).unwrap_or_default().to_string();
        attempt_of(&mounts).map_or_else(by_time, |attempt| attempt.id)
    }

    /// An id that differs for each boot of the machine.
    pub(crate) fn boot_id(&self) -> String {
        let id = fs::read_to_string(self.root.join("sys/kernel/random/boot_id")).unwrap_or_default();
        id.trim().to_owned()
    }

    fn top_process(&self, pid: i32) -> Option<TopProcess> {
        let folder = self.root.join(pid.to_string());
        let (parent, started) = parent_and_start(&fs::read_to_string(folder.join("stat")).ok()?)?;
        if parent != 0 || !leads_its_threads(pid, &fs::read_to_string(folder.join("status")).ok()?) {
            return None;
        }
        let mounts = fs::read_to_string(folder.join("mountinfo")).unwrap_or_default();
        Some(TopProcess { pid, started, attempt: attempt_of(&mounts) })
    }
}

/// Parent PID and start time from `/proc/PID/stat`; `None` for the remains of a process. The command before them is in
/// parentheses and may hold any character.
fn parent_and_start(stat: &str) -> Option<(i32, u64)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}

/// Whether a number is a process' and not one of its other threads', which `/proc` opens too though it does not list them.
fn leads_its_threads(pid: i32, status: &str) -> bool {
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group.is_some_and(|group| group.trim().parse() == Ok(pid))
}

/// The container from `/proc/PID/mountinfo`. The kubelet mounts the termination log from
/// `…/pods/POD-UID/containers/NAME/ID`, whatever path the pod chose to see it at.
fn attempt_of(mountinfo: &str) -> Option<Attempt> {
    mountinfo.lines().find_map(|line| {
        let mut parts = line.split(' ').nth(3)?.rsplit('/');
        let (id, container) = (parts.next()?, parts.next()?);
        let shape = parts.next()? == "containers" && parts.nth(1)? == "pods";
        let is_id = id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (shape && is_id).then(|| Attempt { container: container.to_owned(), id: id.to_owned() })
    })
}

/// A process file system of plain files, for tests.
#[cfg(test)]
pub(crate) mod fake {
    use std::fs;
    use std::path::Path;

    /// The mounts of a container's processes, in short.
    pub(crate) fn mounts_of(container: &str, id: &str) -> String {
        format!("1 2 8:1 /var/lib/kubelet/pods/8a0b/containers/{container}/{id} /dev/termination-log rw - ext4 x rw\n")
    }

    pub(crate) fn stat(pid: i32, command: &str, parent: i32, started: u64) -> String {
        format!("{pid} ({command}) S {parent} 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {started} 123 45 1 1 1\n")
    }

    pub(crate) fn process(root: &Path, pid: i32, parent: i32, started: u64, mounts: &str) {
        let folder = root.join(pid.to_string());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("stat"), stat(pid, "x", parent, started)).unwrap();
        fs::write(folder.join("mountinfo"), mounts).unwrap();
        fs::write(folder.join("status"), format!("Name:\tx\nTgid:\t{pid}\nPid:\t{pid}\n")).unwrap();
    }

    /// Says that this was the last PID given out.
    pub(crate) fn give_out(root: &Path, pid: i32) {
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

    fn attempt(container: &str, id: &str) -> Attempt {
        Attempt { container: container.to_owned(), id: id.to_owned() }
    }

    #[test]
    fn the_container_is_named_by_the_root_of_its_termination_log() {
        let moved = MOUNTS.replace("/dev/termination-log", "/tmp/elsewhere");
        let host_path =
            "1 2 254:0 /var/lib/kubelet/pods/8a0b/volumes/containers/main/1f0c22aa /x rw - ext4 /dev/vda rw";
        let cases = [
            ("as usual", MOUNTS, Some(attempt("main", "1f0c22aa"))),
            ("moved by terminationMessagePath", &moved, Some(attempt("main", "1f0c22aa"))),
            (
                "another kubelet root",
                "1 2 8:1 /data/k/pods/u/containers/a-b/00000000 /x rw - ext4 x rw",
                Some(attempt("a-b", "00000000")),
            ),
            ("not mounted yet", "1203 1201 0:64 / /dev rw - tmpfs tmpfs rw", None),
            ("something alike in a volume", host_path, None),
            ("no id", "1 2 8:1 /pods/u/containers/main/termination /x rw - ext4 x rw", None),
            ("nothing", "", None),
        ];
        for (name, mounts, expected) in cases {
            assert_eq!(attempt_of(mounts), expected, "{name}");
        }
    }

    #[test]
    fn a_command_may_hold_parentheses_and_spaces() {
        for command in ["sh", "a b", "a) S 9 (b", ")"] {
            assert_eq!(parent_and_start(&stat(12, command, 0, 4711)), Some((0, 4711)), "{command}");
        }
        assert_eq!(parent_and_start(&stat(12, "sh", 0, 4711).replace(") S", ") Z")), None, "it has ended");
        assert_eq!(parent_and_start("12 (sh"), None);
        assert_eq!(parent_and_start("12 (sh) S"), None);
    }

    #[test]
    fn top_processes_are_those_started_from_outside_but_pause_earliest_first() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid, parent, started, mounts| fake::process(root.path(), pid, parent, started, mounts);
        process(1, 0, 100, "");
        process(40, 0, 300, MOUNTS); // an exec session in main
        process(9, 0, 200, MOUNTS); // main's init
        process(10, 9, 210, MOUNTS); // its child
        process(50, 0, 400, ""); // being made by the runtime
        process(11, 0, 205, MOUNTS); // a thread of main's init
        fs::write(root.path().join("11/status"), "Name:\tx\nTgid:\t9\nPid:\t11\n").unwrap();
        fake::give_out(root.path(), 50);
        let procfs = Procfs::new(root.path());
        assert_eq!(procfs.last_pid(), Some(50));
        let main = || Some(attempt("main", "1f0c22aa"));
        let expected = [(9, 200, main()), (40, 300, main()), (50, 400, None)]
            .map(|(pid, started, attempt)| TopProcess { pid, started, attempt });
        assert_eq!(procfs.top_processes(procfs.pids()), expected);
    }
}
