//! Reports of wrapped containers, in plain files.

use super::*;
use contract::args::WatchArgs;
use contract::policy::RestartPolicy;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const NOW: Duration = Duration::from_secs(1);

struct Wrapped {
    root: TempDir,
    locks: LockDir,
    pod: PodState,
}

impl Wrapped {
    /// Creates a pod of one wrapped container, `main`.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("main")).unwrap();
        let args = WatchArgs::new(vec!["main".into()], RestartPolicy::OnFailure);
        Self { locks: LockDir::new(root.path()), pod: PodState::new(&args, Duration::ZERO), root }
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("main")
    }

    fn start(&self, instance: &str) -> ContainerLock {
        ContainerLock::acquire(&self.directory(), instance).unwrap()
    }

    /// Closes a lock, and waits until it is free: children that other tests have just forked hold it until they execute.
    fn release(&self, lock: ContainerLock) {
        let file = File::open(self.directory().join(LOCK_FILE)).unwrap();
        drop(lock);
        file.lock_shared().unwrap();
    }

    /// Returns the instance that was reported last, and its exit code.
    fn reported(&mut self) -> (Option<String>, Option<i32>) {
        self.locks.rechecks = 1;
        self.reported_at(NOW)
    }

    fn reported_at(&mut self, now: Duration) -> (Option<String>, Option<i32>) {
        for event in self.locks.check(&self.pod, now) {
            self.pod.apply(event, now);
        }
        let main = &self.pod.containers[0];
        let code = match main.state {
            crate::pod::ContainerState::Terminated { exit: crate::pod::Exit::Code(code), .. } => Some(code),
            _ => None,
        };
        (main.instance.as_ref().map(|instance| instance.id.clone()), code)
    }
}

fn report(id: &str, code: Option<i32>) -> (Option<String>, Option<i32>) {
    (Some(id.to_owned()), code)
}

#[test]
fn container_runs_while_its_lock_is_held() {
    let mut wrapped = Wrapped::new();
    assert_eq!(wrapped.reported(), (None, None));
    let mut lock = wrapped.start("1");
    assert_eq!(wrapped.reported(), report("main/1", None));
    lock.record_exit(7).unwrap();
    assert_eq!(wrapped.reported(), report("main/1", Some(7)), "before the wrapper has ended");
    drop(lock);
    let _lock = wrapped.start("2");
    assert_eq!(wrapped.reported(), report("main/2", None), "restarted");
}

#[test]
fn wrapper_without_exit_line_was_killed() {
    let mut wrapped = Wrapped::new();
    let lock = wrapped.start("1");
    assert_eq!(wrapped.reported(), report("main/1", None));
    wrapped.release(lock);
    assert_eq!(wrapped.reported(), report("main/1", Some(137)));
    // A supervisor that was restarted meanwhile sees the same.
    let lock = wrapped.start("2");
    assert_eq!(wrapped.reported(), report("main/2", None));
    wrapped.release(lock);
    wrapped.locks = LockDir::new(wrapped.root.path());
    assert_eq!(wrapped.reported(), report("main/2", Some(137)));
}

#[test]
fn lock_never_seen_held_reports_nothing() {
    let mut wrapped = Wrapped::new();
    // As seen through another mount, which has locks of its own.
    let mut lock = wrapped.start("1");
    lock.0.unlock().unwrap();
    assert_eq!(wrapped.reported(), (None, None));
    assert_eq!(wrapped.reported(), (None, None));
    lock.record_exit(4).unwrap();
    assert_eq!(wrapped.reported(), report("main/1", Some(4)));
}

#[test]
fn error_is_not_a_release_of_the_lock() {
    let wrapped = Wrapped::new();
    let _lock = wrapped.start("1");
    let path = wrapped.directory().join(LOCK_FILE);
    // Such a descriptor can be neither read nor locked.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH).open(path).unwrap();
    let mut report = Report { file, instance: 1, was_held: true, exit_code: None };
    report.check();
    assert_eq!(report.exit_code, None);
}

#[test]
fn report_of_earlier_boot_does_not_hide_later_one() {
    let mut wrapped = Wrapped::new();
    drop(wrapped.start("9000000000000000"));
    assert_eq!(wrapped.reported(), (None, None));
    let _lock = wrapped.start("30000000");
    assert_eq!(wrapped.reported(), report("main/30000000", None));
}

#[test]
fn lock_released_long_after_close_is_noticed() {
    let mut wrapped = Wrapped::new();
    let lock = wrapped.start("1");
    assert_eq!(wrapped.reported(), report("main/1", None));
    for _ in 0..2 * RECHECK_COUNT {
        wrapped.reported();
    }
    wrapped.locks.rechecks = 0;
    assert_eq!(wrapped.locks.poll_interval(NOW), None, "nothing was closed");
    drop(OpenOptions::new().append(true).open(wrapped.directory().join(LOCK_FILE)).unwrap());
    let mut now = NOW;
    for _ in 0..RECHECK_COUNT {
        now += RECHECK_INTERVAL;
        assert_eq!(wrapped.reported_at(now), report("main/1", None));
    }
    lock.0.unlock().unwrap();
    assert_eq!(wrapped.reported_at(now), report("main/1", None), "nothing is due");
    assert_eq!(wrapped.reported_at(now + CLOSED_CHECK_INTERVAL), report("main/1", Some(137)));
}

#[test]
fn container_of_unwatchable_directory_is_polled() {
    let mut wrapped = Wrapped::new();
    fs::write(wrapped.root.path().join("metrics"), "no directory").unwrap();
    let args = WatchArgs::new(vec!["main".into(), "metrics".into()], RestartPolicy::Never);
    wrapped.pod = PodState::new(&args, Duration::ZERO);
    wrapped.reported();
    assert_eq!(wrapped.locks.poll_interval(NOW), Some(LOCK_POLL_INTERVAL));
}

#[test]
fn restarted_supervisor_reads_held_locks_first() {
    let wrapped = Wrapped::new();
    let _lock = wrapped.start("2");
    let mut observer = crate::observe::Observer::of_locks(wrapped.root.path());
    let events = observer.reattach(&wrapped.pod, NOW);
    assert!(matches!(&events[..], [Event::Started { container, .. }] if container == "main"), "{events:?}");
}

#[test]
fn change_is_reported_once() {
    let mut wrapped = Wrapped::new();
    wrapped.reported();
    let is_noticed = |locks: &mut LockDir| {
        locks.rechecks = 0;
        locks.check(&wrapped.pod, NOW);
        locks.rechecks > 0
    };
    let directory = wrapped.root.path().join("main");
    assert!(!is_noticed(&mut wrapped.locks));
    let mut lock = ContainerLock::acquire(&directory, "1").unwrap();
    assert!(is_noticed(&mut wrapped.locks));
    assert!(!is_noticed(&mut wrapped.locks));
    lock.record_exit(0).unwrap();
    assert!(is_noticed(&mut wrapped.locks));
    wrapped.release(lock);
    assert!(is_noticed(&mut wrapped.locks), "its end is reported without its help");
}

#[test]
fn incomplete_or_special_file_is_not_a_report() {
    let mut wrapped = Wrapped::new();
    let file = wrapped.directory().join(LOCK_FILE);
    for text in ["", "started", "started 1", "rubbish\n", "\u{0}\n", "started x\n"] {
        fs::write(&file, text).unwrap();
        assert_eq!(wrapped.reported(), (None, None), "{text:?}");
    }
    fs::rename(&file, wrapped.directory().join("other")).unwrap();
    fs::write(wrapped.directory().join("other"), "started 5\nexited 0\n").unwrap();
    symlink("other", &file).unwrap();
    assert_eq!(wrapped.reported(), (None, None), "a symbolic link");
    fs::remove_file(&file).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap();
    assert_eq!(wrapped.reported(), (None, None), "a pipe");
}

#[test]
fn container_that_replaces_its_report_changes_nothing() {
    let mut wrapped = Wrapped::new();
    let mut lock = wrapped.start("1");
    assert_eq!(wrapped.reported(), report("main/1", None));
    fs::remove_file(wrapped.directory().join(LOCK_FILE)).unwrap();
    mkfifo(&wrapped.directory().join(LOCK_FILE), Mode::S_IRWXU).unwrap();
    assert_eq!(wrapped.reported(), report("main/1", None));
    lock.record_exit(3).unwrap();
    assert_eq!(wrapped.reported(), report("main/1", Some(3)));
}

#[test]
fn container_can_forge_only_its_own_exit_code() {
    let mut wrapped = Wrapped::new();
    let mut lock = wrapped.start("100");
    assert_eq!(wrapped.reported(), report("main/100", None));
    fs::write(wrapped.directory().join(LOCK_FILE), b"started 1\n\xff").unwrap();
    assert_eq!(wrapped.reported(), report("main/100", None), "its lock is held");
    lock.record_exit(3).unwrap();
    assert_eq!(wrapped.reported(), report("main/100", Some(3)));
}

#[test]
fn wrapper_replaces_any_file() {
    let wrapped = Wrapped::new();
    let (file, precious) = (wrapped.directory().join(LOCK_FILE), wrapped.root.path().join("precious"));
    fs::write(&precious, "data").unwrap();
    symlink(&precious, &file).unwrap();
    drop(wrapped.start("1"));
    assert_eq!(fs::read_to_string(&precious).unwrap(), "data", "a link is not followed");
    let held = File::open(&file).unwrap();
    held.lock_shared().unwrap();
    drop(wrapped.start("2"));
    fs::remove_file(&file).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap();
    drop(wrapped.start("3"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "started 3\n");
}
