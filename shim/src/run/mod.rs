//! Runs the commands: takes in events and carries out decisions.

pub(crate) mod child;
pub(crate) mod install;
pub(crate) mod start_after;
pub(crate) mod wrap;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use contract::args::WatchArgs;
use nix::poll::{PollTimeout, poll};
use signal_hook::consts::SIGTERM;

use crate::clock::now;
use crate::log;
use crate::observe::{Observer, Procfs};
use crate::pod::{Action, Change, ContainerState, Event, Exit, Instance, PodState, Role};
use crate::proxy::ProxyShutdown;
use crate::state_file;
use child::{Child, ChildExit};

/// The runtime reports exits one at a time. If the kubelet saw the shim's exit before the proxy's, it would restart the
/// shim; if it saw only the proxy's, it would look again a second later. So the shim lingers for a multiple of the time
/// that it took to reap the proxy, which shows how busy the node is.
const LINGER_REAP_FACTOR: u32 = 20;
const LINGER_MIN: Duration = Duration::from_millis(20);
const LINGER_MAX: Duration = Duration::from_millis(500);
/// Time that a restarted shim with nothing left to do waits for SIGTERM. The kubelet ends it as soon as no regular
/// container is left. If it does not, some container is about to start.
const RESTARTED_LINGER: Duration = Duration::from_secs(10);
/// Shortest wait until the next scan in which the state file is synced.
const SYNC_IDLE_MIN: Duration = Duration::from_millis(100);
/// The file from which the kubelet reads a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Runs `aux-shim watch` until nothing is left to do, or until SIGTERM, which ends the process at once with 0.
pub(crate) fn watch(args: &WatchArgs) {
    let always = Arc::new(AtomicBool::new(true));
    if let Err(error) = signal_hook::flag::register_conditional_shutdown(SIGTERM, 0, always) {
        log::warn("SIGTERM will end this process with a failure", &[("error", &error)]);
    }
    let mut watcher = Watcher::new(args, Procfs::new("/proc"));
    watcher.restore_state();
    watcher.run(None);
    watcher.report_exit_codes();
    if args.stay {
        loop {
            thread::park();
        }
    }
    thread::sleep((watcher.slowest_reaping * LINGER_REAP_FACTOR).clamp(LINGER_MIN, LINGER_MAX));
}

/// Runs `aux-shim supervise`: watches as the parent of the proxy's command until that has ended. Returns the exit status
/// to report.
pub(crate) fn supervise(args: &WatchArgs, command: &[OsString]) -> ChildExit {
    let procfs = Procfs::new("/proc");
    let (pid, started) = (std::process::id().cast_signed(), now());
    let id = procfs.own_instance().map_or_else(|| started.as_nanos().to_string(), |instance| instance.id);
    let proxy = Instance { id, pid, started };
    // The hosts file is watched before the command runs: the kubelet starts other containers after this one.
    let mut watcher = Watcher::new(args, procfs);
    watcher.restore_state();
    match Child::start(command) {
        Ok(mut child) => {
            watcher.handle(vec![Event::Started { container: args.proxy.clone(), instance: proxy.clone() }]);
            let exit = watcher.run(Some(&mut child)).unwrap_or(ChildExit::with_code(1));
            let counted = watcher.effective_exit(exit, child.got_sigterm());
            watcher.handle(vec![Event::Reaped { instance: proxy.id, code: Some(exit.code()) }]);
            watcher.report_exit_codes();
            counted
        }
        Err(error) => {
            eprintln!("aux-shim: {error}");
            error.exit()
        }
    }
}

struct Watcher {
    pod: PodState,
    observer: Observer,
    shutdown: ProxyShutdown,
    /// The state file; `None` without one, and after it could not be written.
    state: Option<PathBuf>,
    is_unsynced: bool,
    boot: String,
    /// An earlier run of the shim has observed this pod.
    is_restarted: bool,
    slowest_reaping: Duration,
}

impl Watcher {
    fn new(args: &WatchArgs, procfs: Procfs) -> Self {
        let watcher = Self {
            pod: PodState::new(args, now()),
            boot: procfs.boot_id(),
            observer: match &args.lock_dir {
                Some(directory) => Observer::of_locks(Path::new(directory)),
                None => Observer::of_processes(procfs),
            },
            shutdown: ProxyShutdown::new(args),
            state: args.state.as_ref().map(PathBuf::from),
            is_unsynced: false,
            is_restarted: false,
            slowest_reaping: Duration::ZERO,
        };
        // No start after this line is missed.
        let (awaited, helpers) = (args.awaited.join(","), args.helpers.join(","));
        log::info("watching", &[("await", &awaited), ("helper", &helpers), ("restart-policy", &args.restart_policy)]);
        watcher
    }

    /// Loops until nothing is left to do, or until the child has ended.
    fn run(&mut self, mut child: Option<&mut Child>) -> Option<ChildExit> {
        let began = now();
        loop {
            if let Some(exit) = child.as_mut().and_then(|child| child.forward_signals_and_reap()) {
                return Some(exit);
            }
            let events = self.observer.check(&self.pod, now());
            self.handle(events);
            let now = now();
            let mut deadline = self.pod.deadline(now);
            if self.pod.next(now) == Action::Exit && child.is_none() {
                let until = if self.is_restarted { began + RESTARTED_LINGER } else { began };
                if now >= until {
                    return None;
                }
                deadline = deadline.into_iter().chain([until]).min();
            }
            let has_finished = self.pod.payload_has_finished(now);
            if has_finished {
                self.shutdown.advance(self.pod.proxy_runs(), now);
                if let (true, Some(child)) = (self.shutdown.takes_sigterm(now), &child) {
                    log::info("sent SIGTERM to istio-proxy", &[]);
                    child.terminate();
                }
                deadline = deadline.into_iter().chain(self.shutdown.deadline(self.pod.proxy_runs())).min();
            } else {
                self.sync_state(now);
            }
            self.sleep(deadline, has_finished, child.as_deref());
        }
    }

    /// Waits until something happens, or until the deadline.
    fn sleep(&self, deadline: Option<Duration>, has_finished: bool, child: Option<&Child>) {
        let now = now();
        let mut fds = self.observer.poll_fds(&self.pod, now);
        // A request continues only while the payload counts as finished.
        fds.extend(self.shutdown.poll_fd().filter(|_| has_finished));
        fds.extend(child.map(Child::poll_fd));
        let until_deadline = deadline.map(|deadline| deadline.saturating_sub(now));
        let timeout = until_deadline.into_iter().chain(self.observer.poll_interval(&self.pod, now)).min();
        // Rounded up, so that the poll does not end just before the deadline.
        let timeout = timeout.map(|timeout| timeout + Duration::from_micros(999));
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| timeout.try_into().unwrap_or(PollTimeout::MAX));
        // After an interrupted poll, one of the descriptors shows the reason.
        let _ = poll(&mut fds, timeout);
    }

    /// Applies events. If that makes the quit request due, it is sent before anything else.
    fn handle(&mut self, events: Vec<Event>) {
        let mut changes = Vec::new();
        for event in events {
            changes.extend(self.pod.apply(event, now()));
        }
        if changes.is_empty() {
            return;
        }
        if self.pod.next(now()) == Action::QuitProxy {
            self.shutdown.advance(true, now());
        }
        // Saved before it is logged, so a logged change survives a restart.
        self.save_state();
        for change in changes {
            self.note(change);
        }
    }

    fn note(&mut self, change: Change) {
        let name = |index: usize| &self.pod.containers[index].name;
        match change {
            Change::Started(index) => {
                let pid = self.pod.containers[index].instance.as_ref().map_or(0, |instance| instance.pid);
                log::info("container started", &[("container", name(index)), ("pid", &pid)]);
            }
            Change::Ended(_) => {}
            Change::Reaped(index) => {
                let container = &self.pod.containers[index];
                let ContainerState::Terminated { exit, at } = container.state else { return };
                self.slowest_reaping = self.slowest_reaping.max(now().saturating_sub(at));
                match (container.role, container.role == Role::Proxy && self.shutdown.is_requested()) {
                    (Role::Proxy, true) => {
                        let after = self.shutdown.proxy_ended(now()).unwrap_or_default().as_millis();
                        log::info("istio-proxy ended", &[("code", &exit), ("after", &format!("{after}ms"))]);
                    }
                    (Role::Proxy, false) => {
                        log::warn("istio-proxy ended before the awaited containers", &[("code", &exit)]);
                    }
                    _ => log::info("container exited", &[("container", &container.name), ("code", &exit)]),
                }
            }
            Change::Unidentified(exit) => {
                log::warn("a container ended before it could be identified", &[("code", &exit)]);
            }
            Change::NeverSeen => log::warn(
                "a container was announced and never seen; if this pod hangs, end its proxy",
                &[("next", &"istio-aux finish")],
            ),
        }
    }

    /// Restores what an earlier run of the shim observed in this pod.
    fn restore_state(&mut self) {
        let Some(file) = &self.state else { return };
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return log::warn("the state file cannot be read, and is ignored", &[("error", &error)]),
        };
        if state_file::parse(&mut self.pod, &text, &self.boot, now()).is_none() {
            return log::warn("the state file is not one of ours, and is ignored", &[("file", &file.display())]);
        }
        log::info("restarted: restored what was observed before", &[("file", &file.display())]);
        self.is_restarted = true;
        let events = self.observer.reattach(&self.pod, now());
        self.handle(events);
    }

    fn save_state(&mut self) {
        let Some(file) = &self.state else { return };
        self.is_unsynced = true;
        if let Err(error) = state_file::save(file, &state_file::render(&self.pod, &self.boot)) {
            log::warn("the state file cannot be written, and is given up", &[("error", &error)]);
            self.state = None;
        }
    }

    /// Syncs the state file to the disk, in case the machine crashes. On a busy disk that takes seconds, so it waits
    /// until no scan is due soon.
    fn sync_state(&mut self, now: Duration) {
        let is_idle = self.observer.poll_interval(&self.pod, now).is_none_or(|interval| interval > SYNC_IDLE_MIN);
        if let Some(file) = &self.state
            && is_idle
            && std::mem::take(&mut self.is_unsynced)
        {
            // A failed sync matters only if the machine crashes.
            let _ = fs::File::open(file).and_then(|file| file.sync_data());
        }
    }

    /// Returns the exit status that is reported to the kubelet.
    fn effective_exit(&self, exit: ChildExit, got_sigterm: bool) -> ChildExit {
        let is_deletion = got_sigterm && self.pod.payload_has_started();
        let counted = if self.shutdown.is_requested() && exit.signal() == Some(SIGTERM) {
            // The shim asked the proxy to end, so the pod has not failed.
            ChildExit::with_code(0)
        } else if !self.shutdown.is_requested()
            && exit.code() == 0
            && !is_deletion
            && self.pod.proxy_restarts_only_after_failure()
        {
            // pilot-agent exits with 0 when Envoy has crashed, or when the kubelet gave up waiting for it to be ready.
            ChildExit::with_code(1)
        } else {
            exit
        };
        if counted != exit {
            log::info("istio-proxy's exit code is changed", &[("code", &exit), ("to", &counted)]);
        }
        counted
    }

    /// Logs exits whose codes are not known yet, and writes all codes into the termination message.
    fn report_exit_codes(&self) {
        for container in &self.pod.containers {
            // The proxy can end before the runtime has reaped the last container.
            if let ContainerState::Terminated { exit: exit @ Exit::NotReaped, .. } = container.state {
                log::info("container exited", &[("container", &container.name), ("code", &exit)]);
            }
        }
        let exits = self.pod.containers.iter().map(|container| match container.state {
            ContainerState::Terminated { exit, .. } => format!("{}={exit}", container.name),
            ContainerState::Waiting | ContainerState::Running => format!("{}=?", container.name),
        });
        let line = format!("exit codes: {}\n", exits.collect::<Vec<_>>().join(" "));
        // The file exists only in a container.
        if let Ok(mut file) = OpenOptions::new().write(true).open(TERMINATION_LOG) {
            let _ = file.write_all(line.as_bytes());
        }
    }
}
