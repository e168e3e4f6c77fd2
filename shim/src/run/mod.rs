//! Runs the commands: takes in events and carries out decisions.

pub(crate) mod child;
pub(crate) mod install;
pub(crate) mod start_after;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use contract::args::WatchArgs;
use nix::poll::{PollTimeout, poll};
use signal_hook::consts::{SIGKILL, SIGTERM};

use crate::clock::now;
use crate::ended::EndedReport;
use crate::log;
use crate::observe::{Notifier, Observer, Procfs, exit_code};
use crate::pod::{ContainerState, Event, Exit, KnownBy, PodState, Role};
use crate::proxy::ProxyShutdown;
use child::{Child, StartError};

/// The file from which the kubelet reads a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Runs `aux-shim watch` until SIGTERM, which ends the process at once with 0. The kubelet sends it after the pod's regular
/// containers have ended, and restarts a shim that ends earlier (KEP-753).
pub(crate) fn watch(args: &WatchArgs) {
    let always = Arc::new(AtomicBool::new(true));
    if let Err(error) = signal_hook::flag::register_conditional_shutdown(SIGTERM, 0, always) {
        log::warn("SIGTERM will end this process with a failure", &[("error", &error)]);
    }
    let mut watcher = Watcher::new(args, true);
    watcher.run(None);
}

/// Runs `aux-shim supervise`: watches as the parent of the proxy's command until that has ended. Returns the exit status
/// to report.
pub(crate) fn supervise(args: &WatchArgs, command: &[OsString]) -> Result<ExitStatus, StartError> {
    // No inotify: the kernel limits its instances by user, and pilot-agent, which does not start without one, has this user.
    let mut watcher = Watcher::new(args, false);
    let mut child = Child::start(command)?;
    let (pid, id) = (std::process::id().cast_signed(), String::from("own"));
    watcher.take_in(&Event::Started { container: args.proxy.clone(), id, pid });
    let exit = watcher.run(Some(&mut child)).unwrap_or(failure());
    let counted = watcher.effective_exit(exit, child.got_sigterm);
    watcher.note_end_of_proxy(&exit_code(exit));
    watcher.report_outcome();
    Ok(counted)
}

/// Returns the status of a command that exits with 1.
fn failure() -> ExitStatus {
    ExitStatus::from_raw(1 << 8)
}

struct Watcher {
    pod: PodState,
    observer: Observer,
    report: EndedReport,
    shutdown: ProxyShutdown,
    restarts_failed_proxy: bool,
    finished_by: Option<KnownBy>,
    /// The termination message that was written last.
    outcome: String,
}

impl Watcher {
    /// Creates a watcher. Without `is_sidecar`, it is the parent of the proxy's command.
    fn new(args: &WatchArgs, is_sidecar: bool) -> Self {
        let directory = args.annotations.as_ref().and_then(|file| Path::new(file).parent());
        let notifier = is_sidecar.then(|| Notifier::of_pod(directory, !args.report_only)).flatten();
        let observer = Observer::new(Procfs::new("/proc"), !args.report_only, notifier, now());
        let watcher = Self {
            pod: PodState::new(args),
            report: EndedReport::new(args),
            shutdown: ProxyShutdown::new(args),
            observer,
            restarts_failed_proxy: args.restart_policy == contract::policy::RestartPolicy::OnFailure,
            finished_by: None,
            outcome: String::new(),
        };
        // No start after this line is missed.
        let awaited = args.awaited.join(",");
        log::info("watching", &[("await", &awaited), ("restart-policy", &args.restart_policy)]);
        watcher
    }

    /// Loops until the child has ended; without one, for ever.
    fn run(&mut self, mut child: Option<&mut Child>) -> Option<ExitStatus> {
        loop {
            if let Some(exit) = child.as_mut().and_then(|child| child.forward_signals_and_reap()) {
                return Some(exit);
            }
            for event in self.observer.check(&self.pod, now()) {
                self.take_in(&event);
            }
            self.read_report();
            let mut deadline = None;
            if self.pod.finished_by().is_some() {
                let runs = self.pod.proxy_may_run();
                self.shutdown.advance(runs, now());
                if self.shutdown.accepted_by.is_some() || !runs {
                    // The kubelet may end the shim at once.
                    self.report_outcome();
                }
                if let Some(child) = &child
                    && let Some(signal) = self.shutdown.due_signal(now())
                {
                    log::info("sent a signal to istio-proxy", &[("signal", &signal)]);
                    child.signal(signal);
                }
                deadline = self.shutdown.deadline(runs, child.is_some());
            } else {
                self.shutdown.forget_flush();
            }
            self.sleep(deadline, child.as_deref());
        }
    }

    /// Waits until something happens, or until the deadline.
    fn sleep(&self, deadline: Option<Duration>, child: Option<&Child>) {
        let now = now();
        let mut fds = self.observer.poll_fds(now);
        fds.extend(self.shutdown.poll_fd().filter(|_| deadline.is_some()));
        fds.extend(child.map(Child::poll_fd));
        let until_deadline = deadline.map(|deadline| deadline.saturating_sub(now));
        let timeout = until_deadline.into_iter().chain(self.observer.poll_interval(&self.pod, now)).min();
        // Rounded up, so that the poll does not end just before the deadline.
        let timeout = timeout.map(|timeout| timeout + Duration::from_micros(999));
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| timeout.try_into().unwrap_or(PollTimeout::MAX));
        // After an interrupted poll, one of the descriptors shows the reason.
        let _ = poll(&mut fds, timeout);
    }

    /// Applies an event, and logs what it has changed.
    fn take_in(&mut self, event: &Event) {
        let Some(index) = self.pod.apply(event) else { return };
        if self.pod.finished_by().is_some() && self.pod.proxy_may_run() {
            // Before it logs.
            self.shutdown.advance(true, now());
        }
        let container = &self.pod.containers[index];
        let (name, role) = (&container.name, container.role);
        match event {
            Event::Started { pid, .. } => {
                log::info("container started", &[("container", name), ("pid", pid)]);
                if role == Role::Proxy && self.pod.finished_by().is_none() {
                    // This start is not asked for the ends before it.
                    self.finished_by = None;
                }
                if role == Role::Awaited && self.finished_by.is_some() {
                    let what = "container started after istio-proxy was asked to quit: it may have no network";
                    log::warn(what, &[("container", name)]);
                }
            }
            Event::Ended { exit, .. } if role == Role::Proxy => self.note_end_of_proxy(exit),
            Event::Ended { exit, .. } => log::info("container exited", &[("container", name), ("code", exit)]),
        }
        self.note_finish(None);
    }

    /// Reads the kubelet's report, unless an awaited container is seen to run.
    fn read_report(&mut self) {
        if self.pod.sees_awaited_run() {
            return;
        }
        let codes = self.report.read();
        self.pod.set_reported(codes.is_some());
        self.note_finish(codes.as_deref());
    }

    /// Logs once how it is known that the awaited containers have finished.
    fn note_finish(&mut self, codes: Option<&str>) {
        let finished_by = self.pod.finished_by();
        if let (None, Some(known_by)) = (self.finished_by, finished_by) {
            self.finished_by = Some(known_by);
            let codes = codes.map_or_else(|| self.codes(), str::to_owned);
            log::info("awaited containers finished", &[("known-by", &known_by), ("codes", &codes)]);
        }
    }

    fn note_end_of_proxy(&mut self, code: &dyn std::fmt::Display) {
        if self.shutdown.is_requested() {
            let after = self.shutdown.proxy_ended(now()).unwrap_or_default().as_millis();
            log::info("istio-proxy ended", &[("code", code), ("after", &format!("{after}ms"))]);
        } else {
            log::warn("istio-proxy ended before the awaited containers", &[("code", code)]);
        }
    }

    /// Returns the exit status that is reported to the kubelet.
    fn effective_exit(&self, exit: ExitStatus, got_sigterm: bool) -> ExitStatus {
        let is_deletion = got_sigterm && self.pod.payload_has_started();
        let is_by_shim = exit.signal().is_some_and(|signal| [SIGTERM, SIGKILL].contains(&signal));
        let counted = if self.shutdown.is_requested() && is_by_shim {
            // The shim asked the proxy to end, so the pod has not failed.
            ExitStatus::default()
        } else if !self.shutdown.is_requested() && exit.success() && !is_deletion && self.restarts_failed_proxy {
            // pilot-agent exits with 0 when Envoy has crashed, or when the kubelet gave up waiting for it to be ready.
            failure()
        } else {
            exit
        };
        if counted != exit {
            let (code, to) = (exit_code(exit), exit_code(counted));
            log::info("istio-proxy's exit code is changed", &[("code", &code), ("to", &to)]);
        }
        counted
    }

    /// Writes the codes that were seen, and how the finish was known, into the termination message.
    fn report_outcome(&mut self) {
        let known_by = self.finished_by.map_or_else(|| "none".to_owned(), |known_by| known_by.to_string());
        let asked = self.shutdown.accepted_by.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        let line = format!("exit codes: {}; known by: {known_by}; asked: {asked}\n", self.codes());
        // The file exists only in a container.
        if line != self.outcome
            && let Ok(mut file) = OpenOptions::new().write(true).truncate(true).open(TERMINATION_LOG)
        {
            let _ = file.write_all(line.as_bytes());
        }
        self.outcome = line;
    }

    fn codes(&self) -> String {
        let others = self.pod.containers.iter().filter(|container| container.role != Role::Proxy);
        let codes = others.map(|container| match container.state {
            ContainerState::Ended(_, exit @ Exit { code: Some(_), .. }) => format!("{}={exit}", container.name),
            _ => format!("{}=?", container.name),
        });
        codes.collect::<Vec<_>>().join(" ")
    }
}
