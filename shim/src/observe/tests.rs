//! Events of the process observer, in a process file system of plain files.

use super::procfs::fake::{mounts_of, process, set_last_pid, stat};
use super::*;
use crate::clock::now;
use contract::args::WatchArgs;
use contract::policy::RestartPolicy;
use std::fs;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Holds an observer of a pod of `main`, in which only the shim runs, after a first scan.
struct Observing {
    root: TempDir,
    observer: ProcessObserver,
    pod: PodState,
}

impl Observing {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let own = mounts_of("aux-shim", "0988f5a5");
        process(root.path(), std::process::id().cast_signed(), 0, 100, &own);
        fs::create_dir(root.path().join("self")).unwrap();
        fs::write(root.path().join("self/mountinfo"), &own).unwrap();
        fs::write(root.path().join("hosts"), "").unwrap();
        set_last_pid(root.path(), 7);
        let hosts = root.path().join("hosts");
        let observer = ProcessObserver::new(Procfs::new(root.path()), hosts.to_str().unwrap());
        let pod = PodState::new(&WatchArgs::new(vec!["main".into()], RestartPolicy::Never), now());
        let mut observing = Self { root, observer, pod };
        assert_eq!(observing.scan(), [Event::PidMissed, Event::Scanned]);
        observing
    }

    /// Returns the events of a check that scans.
    fn scan(&mut self) -> Vec<Event> {
        self.scan_at(now())
    }

    fn scan_at(&mut self, now: Duration) -> Vec<Event> {
        self.observer.last_scan = Duration::ZERO;
        self.observer.check(&self.pod, now)
    }

    /// Returns the instances whose start a check reports.
    fn starts(&mut self) -> Vec<String> {
        let events = self.scan();
        let instances = events.into_iter().filter_map(|event| match event {
            Event::Started { instance, .. } => Some(instance.id),
            _ => None,
        });
        instances.collect()
    }

    /// Starts a process of which the runtime is creating a container. It is real, because its pidfd is needed.
    fn in_creation(&self) -> Child {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        process(self.root.path(), pid, 0, 200, "1 2 8:1 / / rw - ext4 x rw\n");
        set_last_pid(self.root.path(), pid);
        child
    }

    fn name(&self, child: &Child, container: &str) {
        let mountinfo = self.root.path().join(format!("{}/mountinfo", child.id()));
        fs::write(mountinfo, mounts_of(container, "53ef4a5b")).unwrap();
    }

    /// Ends a process, and reaps it.
    fn end(&self, mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
        fs::remove_dir_all(self.root.path().join(child.id().to_string())).unwrap();
    }
}

#[test]
fn container_is_reported_once_it_has_mounts() {
    let mut observing = Observing::new();
    let child = observing.in_creation();
    observing.observer.detector = StartDetector::after(child.id().cast_signed() - 1);
    assert_eq!(observing.scan(), [Event::Scanned]);
    observing.name(&child, "main");
    assert_eq!(observing.starts(), ["53ef4a5b"]);
    assert_eq!(observing.starts(), [""; 0], "once");
    observing.end(child);
    let events = observing.scan();
    assert!(matches!(&events[0], Event::Reaped { instance, .. } if instance == "53ef4a5b"), "{events:?}");
}

#[test]
fn pid_before_its_proc_entry_is_looked_up_again() {
    let mut observing = Observing::new();
    set_last_pid(observing.root.path(), 43);
    observing.observer.detector = StartDetector::after(42);
    assert_eq!(observing.scan(), [Event::Scanned]);
    process(observing.root.path(), 43, 0, 200, &mounts_of("main", "53ef4a5b"));
    assert_eq!(observing.starts(), ["53ef4a5b"]);
}

#[test]
fn pid_without_proc_entry_was_missed() {
    let mut observing = Observing::new();
    set_last_pid(observing.root.path(), 43);
    observing.observer.detector = StartDetector::after(42);
    let began = now();
    for _ in 0..50 {
        assert_eq!(observing.scan_at(began), [Event::Scanned]);
    }
    assert_eq!(observing.scan_at(began + Duration::from_millis(100)), [Event::PidMissed, Event::Scanned]);
    assert_eq!(observing.scan(), [Event::Scanned]);
}

#[test]
fn pid_is_looked_up_again_after_error() {
    for file in ["stat", "status", "mountinfo"] {
        let mut observing = Observing::new();
        process(observing.root.path(), 43, 0, 200, &mounts_of("main", "53ef4a5b"));
        let file = observing.root.path().join("43").join(file);
        let text = fs::read(&file).unwrap();
        // Reading a directory fails, like any read while no file can be opened.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        set_last_pid(observing.root.path(), 43);
        observing.observer.detector = StartDetector::after(42);
        assert_eq!(observing.scan(), [Event::Scanned]);
        assert_eq!(observing.scan_at(now() + Duration::from_secs(1)), [Event::Scanned]);
        fs::remove_dir(&file).unwrap();
        fs::write(&file, text).unwrap();
        assert_eq!(observing.starts(), ["53ef4a5b"]);
    }
}

#[test]
fn exiting_exec_session_is_not_in_creation() {
    let mut observing = Observing::new();
    let child = observing.in_creation();
    // It has lost its mounts and its pidfd does not show its end yet.
    fs::write(observing.root.path().join(format!("{}/mountinfo", child.id())), "").unwrap();
    observing.observer.detector = StartDetector::after(child.id().cast_signed() - 1);
    assert_eq!(observing.scan(), [Event::Scanned]);
    observing.end(child);
    assert_eq!(observing.scan_at(now() + Duration::from_secs(1)), [Event::PidMissed, Event::Scanned]);
}

#[test]
fn process_that_ends_in_creation_is_unidentified() {
    let mut observing = Observing::new();
    let child = observing.in_creation();
    observing.observer.detector = StartDetector::after(child.id().cast_signed() - 1);
    observing.scan();
    observing.end(child);
    let events = observing.scan();
    assert!(matches!(events[..], [Event::UnidentifiedExit { .. }, Event::Scanned]), "{events:?}");
}

#[test]
fn process_in_creation_is_scanned_while_it_lives() {
    let mut observing = Observing::new();
    let child = observing.in_creation();
    observing.observer.detector = StartDetector::after(child.id().cast_signed() - 1);
    for _ in 0..500 {
        assert_eq!(observing.starts(), [""; 0]);
    }
    let (pod, now) = (&observing.pod, now());
    assert!(observing.observer.poll_interval(pod, now) <= Some(Duration::from_millis(5)));
    let later = now + Duration::from_secs(2);
    assert_eq!(observing.observer.detector.scan_interval(later), Some(Duration::from_millis(500)), "a slow disk");
    observing.name(&child, "main");
    assert_eq!(observing.starts(), ["53ef4a5b"]);
    observing.end(child);
}

#[test]
fn exec_session_is_not_a_start() {
    let mut observing = Observing::new();
    process(observing.root.path(), 60, 0, 300, &mounts_of("main", "53ef4a5b"));
    process(observing.root.path(), 43, 0, 200, &mounts_of("main", "53ef4a5b"));
    set_last_pid(observing.root.path(), 60);
    let events = observing.scan();
    let pid = events.iter().find_map(|event| match event {
        Event::Started { instance, .. } => Some(instance.pid),
        _ => None,
    });
    assert_eq!(pid, Some(43), "{events:?}");
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Started { .. })).count(), 1, "{events:?}");
}

#[test]
fn leftover_exec_session_has_no_exit_code() {
    for (gap, is_init) in [(Duration::ZERO, true), (Duration::from_secs(1), false)] {
        let mut observing = Observing::new();
        let child = observing.in_creation();
        observing.name(&child, "main");
        // The PID before it was allocated, too, possibly to the init process, which has ended.
        let detector = StartDetector::after(child.id().cast_signed() - 2);
        observing.observer.detector = detector.since(now().saturating_sub(gap));
        assert_eq!(observing.starts(), ["53ef4a5b"]);
        assert_eq!(observing.observer.observed[0].is_init, is_init, "{gap:?}");
        observing.end(child);
    }
}

#[test]
fn process_with_non_utf8_command_is_detected() {
    let mut observing = Observing::new();
    process(observing.root.path(), 43, 0, 200, &mounts_of("main", "53ef4a5b"));
    let mut bytes = b"43 (".to_vec();
    bytes.extend_from_slice(&"обработка".as_bytes()[..15]);
    bytes.extend_from_slice(&stat(43, "", 0, 200).as_bytes()[4..]);
    fs::write(observing.root.path().join("43/stat"), bytes).unwrap();
    set_last_pid(observing.root.path(), 43);
    assert_eq!(observing.starts(), ["53ef4a5b"]);
}

#[test]
fn announcement_is_reported_before_its_start() {
    let mut observing = Observing::new();
    let hosts = observing.root.path().join("hosts");
    fs::write(&hosts, "10.244.0.9 pod\n").unwrap();
    fs::set_permissions(&hosts, fs::metadata(&hosts).unwrap().permissions()).unwrap();
    process(observing.root.path(), 43, 0, 200, &mounts_of("main", "53ef4a5b"));
    set_last_pid(observing.root.path(), 43);
    observing.observer.detector = StartDetector::after(42);
    let events = observing.scan();
    assert!(matches!(events[..2], [Event::StartsAnnounced(1), Event::Started { .. }]), "{events:?}");
}

#[test]
fn nothing_is_scanned_while_nothing_may_start() {
    let mut observing = Observing::new();
    for (container, id) in [("main", "a"), ("istio-proxy", "p")] {
        let instance = Instance { id: id.into(), pid: 7, started: now() };
        observing.pod.apply(Event::Started { container: container.into(), instance }, now());
    }
    set_last_pid(observing.root.path(), 4000);
    assert_eq!(observing.scan(), []);
    assert_eq!(observing.observer.poll_interval(&observing.pod, now()), None);
}

#[test]
fn running_container_is_reattached_by_its_process() {
    let mut observing = Observing::new();
    let child = observing.in_creation();
    for (container, pid, ticks) in [("main", child.id().cast_signed(), 200), ("istio-proxy", 43, 150)] {
        let instance = Instance { id: container.into(), pid, started: started(ticks) };
        observing.pod.apply(Event::Started { container: container.into(), instance }, now());
    }
    let gone = Event::Reaped { instance: "istio-proxy".into(), code: None };
    assert_eq!(observing.observer.reattach(&observing.pod), [Event::StartsAnnounced(1), gone]);
    assert_eq!(observing.observer.observed.len(), 1);
    observing.end(child);
}
