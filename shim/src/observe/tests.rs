//! Listings of a process file system of plain files.

use contract::policy::RestartPolicy;
use std::fs;

use super::procfs::fake;
use super::*;
use contract::args::WatchArgs;
use nix::poll::{PollTimeout, poll};

/// A pod whose processes are files; they have no pidfd, as they do not exist.
struct World {
    root: tempfile::TempDir,
    observer: Observer,
    pod: PodState,
    now: Duration,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fake::set_last_pid(root.path(), 1);
        let args = WatchArgs::new(vec!["main".to_owned(), "metrics".to_owned()], RestartPolicy::Never);
        let now = Duration::from_secs(1000);
        let mut observer = Observer::new(Procfs::new(root.path()), true, None, now);
        observer.clock = || Duration::ZERO;
        Self { root, observer, pod: PodState::new(&args), now }
    }

    /// A process that the runtime has forked, and that has executed nothing.
    fn fork(&self, pid: i32, mounts: &str) {
        // PIDs above the kernel's limit (PID_MAX_LIMIT), which no process has: otherwise the end of that would be waited for.
        fake::process(self.root.path(), pid, 0, 200 + u64::from(pid.unsigned_abs()), mounts);
        fake::set_flags(self.root.path(), pid, 0x40);
        fake::set_last_pid(self.root.path(), pid);
    }

    fn mount(&self, pid: i32, container: &str, id: &str) {
        fs::write(self.root.path().join(format!("{pid}/mountinfo")), fake::mounts_of(container, id)).unwrap();
    }

    fn execute(&self, pid: i32) {
        fake::set_flags(self.root.path(), pid, 0);
    }

    fn end(&self, pid: i32) {
        fs::remove_dir_all(self.root.path().join(pid.to_string())).unwrap();
    }

    /// Scans once, this long after the last scan. Returns what happened, in words.
    fn scan(&mut self, after: Duration) -> Vec<String> {
        self.now += after;
        self.observer.next_scan = self.now;
        let events = self.observer.check(&self.pod, self.now);
        self.take_in(&events)
    }

    /// Applies events, and returns them in words.
    fn take_in(&mut self, events: &[Event]) -> Vec<String> {
        for event in events {
            self.pod.apply(event);
        }
        let words = events.iter().map(|event| match event {
            Event::Started { container, id, .. } => format!("{container} {id} started"),
            Event::Ended { id, exit } => format!("{id} ended {} {}", exit, exit.has_executed),
        });
        words.collect()
    }
}

const SCAN_PAUSE: Duration = Duration::from_millis(20);
const FIRST: i32 = 5_000_001;
const SECOND: i32 = 5_000_002;
const NOTHING: [&str; 0] = [];

#[test]
fn container_is_known_once_it_has_its_mounts() {
    let mut world = World::new();
    world.fork(FIRST, "");
    assert_eq!(world.scan(SCAN_PAUSE), NOTHING);
    world.mount(FIRST, "main", "0000000a");
    assert_eq!(world.scan(SCAN_PAUSE), ["main 0000000a started"]);
    assert_eq!(world.scan(SCAN_PAUSE), NOTHING);
    world.execute(FIRST);
    world.scan(Duration::from_secs(1));
    world.end(FIRST);
    assert_eq!(world.scan(SCAN_PAUSE), ["0000000a ended unknown true"]);
    assert_eq!(world.scan(Duration::from_secs(1)), NOTHING);
}

#[test]
fn process_that_executed_nothing_is_told_apart() {
    let mut world = World::new();
    world.fork(FIRST, "");
    world.scan(SCAN_PAUSE);
    world.mount(FIRST, "main", "0000000a");
    world.scan(SCAN_PAUSE);
    world.end(FIRST);
    assert_eq!(world.scan(SCAN_PAUSE), ["0000000a ended unknown false"]);
}

#[test]
fn missed_container_is_found_by_the_next_listing() {
    let mut world = World::new();
    fake::set_last_pid(world.root.path(), SECOND);
    world.scan(SCAN_PAUSE);
    // Its number was given out before the last scan, and it is in /proc only now.
    world.fork(FIRST, &fake::mounts_of("main", "0000000a"));
    fake::set_last_pid(world.root.path(), SECOND);
    assert_eq!(world.scan(SCAN_PAUSE), NOTHING);
    assert_eq!(world.scan(Duration::from_secs(1)), ["main 0000000a started"]);
}

#[test]
fn end_in_the_scan_that_finds_a_container_late_is_not_lost() {
    let mut world = World::new();
    world.fork(FIRST, &fake::mounts_of("main", "0000000a"));
    let mut events = Vec::new();
    world.observer.list(&world.pod, world.now, &mut events);
    world.end(FIRST);
    events.extend(world.observer.ended(&world.pod, world.now));
    assert_eq!(world.take_in(&events), ["main 0000000a started", "0000000a ended unknown false"]);
    assert!(!world.pod.sees_awaited_run(), "the kubelet's report is read");
}

#[test]
fn end_of_exec_session_is_not_the_containers() {
    let mut world = World::new();
    let mounts = fake::mounts_of("main", "0000000a");
    world.fork(FIRST, &mounts);
    world.execute(FIRST);
    world.fork(SECOND, &mounts);
    assert_eq!(world.scan(SCAN_PAUSE), ["main 0000000a started"]);
    world.end(SECOND);
    assert_eq!(world.scan(SCAN_PAUSE), NOTHING);
    world.end(FIRST);
    assert_eq!(world.scan(SCAN_PAUSE), ["0000000a ended unknown false"]);
}

#[test]
fn container_of_a_listing_that_took_long_is_found_late() {
    let clocks: [(fn() -> Duration, bool); 2] = [(|| Duration::ZERO, true), (|| Duration::from_secs(2000), false)];
    for (clock, is_final) in clocks {
        let mut world = World::new();
        world.scan(SCAN_PAUSE);
        world.observer.clock = clock;
        world.fork(FIRST, &fake::mounts_of("main", "0000000a"));
        assert_eq!(world.scan(SCAN_PAUSE), ["main 0000000a started"]);
        world.execute(FIRST);
        world.scan(Duration::from_secs(1));
        world.end(FIRST);
        assert_eq!(world.scan(SCAN_PAUSE), [format!("0000000a ended unknown {is_final}")]);
    }
}

#[test]
fn start_of_a_container_that_is_not_awaited_keeps_scans_frequent() {
    let mut world = World::new();
    world.scan(START_EXPECTED_FOR + SCAN_PAUSE);
    world.fork(FIRST, &fake::mounts_of("helper", "0000000a"));
    world.execute(FIRST);
    world.scan(Duration::from_secs(1));
    assert!(world.now < world.observer.expected_until, "the next one may follow at once");
}

#[test]
fn processes_of_an_earlier_instance_of_its_own_container_are_not_the_proxy() {
    let mut world = World::new();
    world.observer.own_instance =
        Some(ContainerInstance { container: "istio-proxy".to_owned(), id: "0000000b".to_owned() });
    world.fork(FIRST, &fake::mounts_of("istio-proxy", "0000000a"));
    assert_eq!(world.scan(SCAN_PAUSE), NOTHING);
}

#[test]
fn exec_session_found_first_does_not_end_its_container() {
    let mut world = World::new();
    let mounts = fake::mounts_of("main", "0000000a");
    world.fork(SECOND, &mounts);
    assert_eq!(world.scan(SCAN_PAUSE), ["main 0000000a started"]);
    // The container's own process could not be read until now.
    world.fork(FIRST, &mounts);
    world.end(SECOND);
    assert_eq!(world.scan(SCAN_PAUSE), NOTHING, "the container still runs");
    world.end(FIRST);
    assert_eq!(world.scan(SCAN_PAUSE), ["0000000a ended unknown false"]);
}

#[test]
fn restart_is_another_start() {
    let mut world = World::new();
    world.fork(FIRST, &fake::mounts_of("main", "0000000a"));
    world.scan(SCAN_PAUSE);
    world.end(FIRST);
    world.fork(SECOND, &fake::mounts_of("main", "0000000b"));
    assert_eq!(world.scan(SCAN_PAUSE), ["0000000a ended unknown false", "main 0000000b started"]);
}

#[test]
fn containers_of_others_are_not_reported() {
    let mut world = World::new();
    world.fork(FIRST, &fake::mounts_of("debugger", "0000000a"));
    assert_eq!(world.scan(SCAN_PAUSE), NOTHING);
    world.end(FIRST);
    assert_eq!(world.scan(Duration::from_secs(1)), NOTHING);
    assert_eq!(world.observer.roots.len(), 0);
}

#[test]
fn nothing_is_scanned_while_all_run() {
    let mut world = World::new();
    for (pid, name) in [(FIRST, "main"), (SECOND, "metrics"), (5_000_003, "istio-proxy")] {
        assert!(world.observer.poll_interval(&world.pod, world.now).is_some());
        world.fork(pid, &fake::mounts_of(name, &format!("{:08x}", pid % 16)));
        assert_eq!(world.scan(SCAN_PAUSE).len(), 1);
        world.execute(pid);
        world.scan(Duration::from_secs(1));
    }
    assert!(!world.pod.expects_start());
    // These processes have no pidfd; real ones are waited for without a limit.
    assert_eq!(world.observer.poll_interval(&world.pod, world.now), Some(Duration::from_millis(500)));
}

#[test]
fn announced_start_is_expected_until_a_later_one() {
    let mut world = World::new();
    let hosts = world.root.path().join("hosts");
    fs::write(&hosts, "").unwrap();
    world.observer.notifier = Some(Notifier::of(&hosts));
    let is_expected = |world: &World| world.now < world.observer.expected_until;
    world.fork(FIRST, &fake::mounts_of("metrics", "0000000a"));
    world.execute(FIRST);
    fs::write(&hosts, "10.244.0.9 pod\n").unwrap();
    // A process that another test has just forked keeps the file open for a moment.
    let notified = poll(&mut [world.observer.notifier.as_ref().unwrap().poll_fd()], PollTimeout::NONE);
    assert_eq!((notified, world.scan(SCAN_PAUSE)), (Ok(1), vec!["metrics 0000000a started".to_owned()]));
    assert!(is_expected(&world), "it was there before another was announced");
    world.fork(SECOND, &fake::mounts_of("main", "0000000b"));
    world.execute(SECOND);
    assert_eq!(world.scan(SCAN_PAUSE), ["main 0000000b started"]);
    assert!(!is_expected(&world));
}

#[test]
fn scans_are_frequent_only_while_a_start_is_expected() {
    let mut world = World::new();
    world.scan(SCAN_PAUSE);
    let pause = |world: &World| world.observer.next_scan.saturating_sub(world.now);
    assert!(pause(&world) >= EXPECTED_PAUSE && pause(&world) < POSSIBLE_PAUSE);
    world.scan(START_EXPECTED_FOR);
    assert_eq!(pause(&world), POSSIBLE_PAUSE);
    world.fork(FIRST, "");
    world.scan(SCAN_PAUSE);
    assert!(pause(&world) < POSSIBLE_PAUSE, "a process is being created");
    world.scan(CREATION_EXPECTED_WITHIN);
    assert_eq!(pause(&world), POSSIBLE_PAUSE, "a slow one");
}
