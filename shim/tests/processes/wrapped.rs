//! `aux-shim supervise` beside wrapped containers, which report in directories of their own.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::pod::{self, Agent, Pod};

/// Creates the containers' directories. Returns the one above, and the option that names it.
fn lock_dir(pod: &Pod, containers: &[&str]) -> (PathBuf, String) {
    let locks = pod.file("locks");
    for name in containers {
        fs::create_dir_all(locks.join(name)).unwrap();
    }
    let option = format!("--lock-dir={}", locks.display());
    (locks, option)
}

/// Holds a wrapped container.
struct Wrapped {
    wrapper: Child,
    gate: PathBuf,
}

impl Wrapped {
    /// Lets the container end, and waits until it has.
    fn finish(mut self) {
        fs::write(self.gate, "").unwrap();
        self.wrapper.wait().unwrap();
    }
}

/// Starts a wrapped container outside any namespace, which exits with a code when it may.
fn wrapped(locks: &Path, name: &str, code: i32) -> Wrapped {
    let gate = locks.with_extension(format!("{name}-gate"));
    let _ = fs::remove_file(&gate);
    let script = format!("while ! [ -e {} ]; do sleep 0.01; done; exit {code}", gate.display());
    let mut wrapper = Command::new(env!("CARGO_BIN_EXE_aux-shim"));
    wrapper.args(["wrap", "--lock-dir"]).arg(locks.join(name)).args(["--", "sh", "-c", &script]);
    Wrapped { wrapper: wrapper.stdin(Stdio::null()).spawn().unwrap(), gate }
}

#[test]
fn wrapped_containers_are_awaited_by_locks() {
    let pod = Pod::new();
    let agent = Agent::new(&pod, 0);
    let (locks, lock_dir) = lock_dir(&pod, &["early", "main"]);
    // This container ends before the supervisor runs.
    let early = wrapped(&locks, "early", 0);
    early.finish();
    let mut shim = pod.supervise(&agent, &["--await=main", "--await=early", "--restart-policy=OnFailure", &lock_dir]);
    shim.until_logged("container exited container=early code=0");
    // This one is killed as a whole, is retried and fails, is retried and succeeds.
    let mut main = wrapped(&locks, "main", 0);
    shim.until_logged("container started container=main");
    main.wrapper.kill().unwrap();
    main.wrapper.wait().unwrap();
    shim.until_logged("container exited container=main code=137");
    for (attempt, code) in [(2, 5), (3, 0)] {
        let main = wrapped(&locks, "main", code);
        shim.until_logged_times(attempt, "container started container=main");
        assert_eq!(agent.quit_requests(), 0);
        main.finish();
        shim.until_logged(&format!("container exited container=main code={code}"));
    }
    agent.assert_quit_once(shim);
}

#[test]
fn restarted_supervisor_exits_after_probe_killed_container() {
    let pod = Pod::new();
    let agent = Agent::new(&pod, 0);
    let (locks, lock_dir) = lock_dir(&pod, &["main"]);
    let state = format!("--state={}", pod.file("state").display());
    let arguments = ["--await=main", "--may-restart=main", "--restart-policy=OnFailure", &lock_dir, &state];
    let mut shim = pod.supervise(&agent, &arguments);
    let main = wrapped(&locks, "main", 0);
    shim.until_logged("container started container=main");
    shim.kill();
    let shim = pod.supervise(&agent, &arguments);
    main.finish();
    agent.assert_quit_once(shim);
}

#[test]
fn container_with_later_directory_is_awaited() {
    let pod = Pod::new();
    let agent = Agent::new(&pod, 0);
    let (locks, lock_dir) = lock_dir(&pod, &["main"]);
    let mut shim = pod.supervise(&agent, &["--await=main", "--await=late", "--restart-policy=Never", &lock_dir]);
    let main = wrapped(&locks, "main", 0);
    main.finish();
    shim.until_logged("container exited container=main code=0");
    assert_eq!(agent.quit_requests(), 0);
    fs::create_dir(locks.join("late")).unwrap();
    let late = wrapped(&locks, "late", 0);
    shim.until_logged("container started container=late");
    late.finish();
    assert_eq!((shim.end().0, agent.quit_requests()), (Some(0), 1));
}

/// A file that a hostile container may put in place of its lock.
#[derive(Debug, Clone, Copy)]
enum Trap {
    Pipe,
    LinkToReport,
    LinkToDevice,
    Directory,
    LongText,
    HeldLock,
}

const TRAPS: [Trap; 6] =
    [Trap::Pipe, Trap::LinkToReport, Trap::LinkToDevice, Trap::Directory, Trap::LongText, Trap::HeldLock];

impl Trap {
    /// Creates the trap. Returns the open file of a held lock.
    fn plant(self, file: &Path) -> Option<File> {
        match self {
            Self::Pipe => mkfifo(file, Mode::from_bits_truncate(0o666)).unwrap(),
            Self::LinkToReport => {
                let other = file.with_extension("other");
                fs::write(&other, "started 1\nexited 0\n").unwrap();
                symlink(other, file).unwrap();
            }
            Self::LinkToDevice => symlink("/dev/zero", file).unwrap(),
            Self::Directory => fs::create_dir(file).unwrap(),
            Self::LongText => fs::write(file, vec![b'1'; 1 << 20]).unwrap(),
            Self::HeldLock => {
                fs::write(file, "started 1\n").unwrap();
                let held = File::open(file).unwrap();
                held.lock().unwrap();
                return Some(held);
            }
        }
        None
    }
}
#[test]
fn sigterm_reaches_agent_despite_traps() {
    for trap in TRAPS {
        let pod = Pod::new();
        let agent = Agent::with_script(&pod, "trap 'exit 6' TERM", 0);
        let (locks, lock_dir) = lock_dir(&pod, &["main"]);
        let _held = trap.plant(&locks.join("main/lock"));
        let shim = pod.supervise(&agent, &["--await=main", "--restart-policy=Never", &lock_dir]);
        Agent::until_ready(&pod);
        let (status, log) = shim.terminate();
        assert_eq!((status, agent.quit_requests()), (Some(6), 0), "{trap:?}: {log}");
    }
}

#[test]
fn container_is_awaited_despite_traps_of_others() {
    let pod = Pod::new();
    let agent = Agent::new(&pod, 0);
    let hostile: Vec<String> = (0..TRAPS.len()).map(|index| format!("hostile-{index}")).collect();
    let names: Vec<&str> = hostile.iter().map(String::as_str).chain(["main"]).collect();
    let (locks, lock_dir) = lock_dir(&pod, &names);
    let _held: Vec<Option<File>> =
        TRAPS.iter().zip(&hostile).map(|(trap, name)| trap.plant(&locks.join(name).join("lock"))).collect();
    let helpers: Vec<String> = hostile.iter().map(|name| format!("--helper={name}")).collect();
    let mut arguments = vec!["--await=main", "--restart-policy=Never", &lock_dir];
    arguments.extend(helpers.iter().map(String::as_str));
    let mut shim = pod.supervise(&agent, &arguments);
    let main = wrapped(&locks, "main", 0);
    shim.until_logged("container started container=main");
    assert_eq!(agent.quit_requests(), 0);
    main.finish();
    agent.assert_quit_once(shim);
}

#[test]
fn container_that_replaces_its_lock_is_awaited() {
    for trap in TRAPS {
        let pod = Pod::new();
        let agent = Agent::new(&pod, 0);
        let (locks, lock_dir) = lock_dir(&pod, &["main", "metrics"]);
        let mut shim = pod.supervise(&agent, &["--await=main", "--await=metrics", "--restart-policy=Never", &lock_dir]);
        let main = wrapped(&locks, "main", 0);
        shim.until_logged("container started container=main");
        fs::remove_file(locks.join("main/lock")).unwrap();
        let _held = trap.plant(&locks.join("main/lock"));
        let metrics = wrapped(&locks, "metrics", 0);
        metrics.finish();
        shim.until_logged("container exited container=metrics code=0");
        assert!(!shim.log().contains("container exited container=main"), "{trap:?}: {}", shim.log());
        assert_eq!(agent.quit_requests(), 0, "{trap:?}");
        main.finish();
        pod::until("the request", || agent.quit_requests() == 1);
        assert_eq!(shim.end().0, Some(0), "{trap:?}");
    }
}
