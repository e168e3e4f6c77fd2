//! Observers report what happens to the pod's containers as events. They decide nothing.

mod hosts_watch;
mod lock_dir;
mod process;
mod procfs;
mod start_detector;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use nix::poll::PollFd;

use crate::log;
use crate::pod::{ContainerState, Event, Instance, PodState};
use crate::syscalls::pidfd_open;
use hosts_watch::HostsFileWatch;
use process::{Process, ProcessEvent};
use procfs::ContainerInstance;
use start_detector::{NamedProcess, StartDetector};

pub(crate) use lock_dir::{ContainerLock, LockDir};
pub(crate) use process::exit_code;
pub(crate) use procfs::{Activity, Procfs};

/// The file that the kubelet writes before each start.
const HOSTS_FILE: &str = "/etc/hosts";

/// Observes the pod's containers.
#[derive(Debug)]
pub(crate) enum Observer {
    /// Observes processes, in the pod's shared PID namespace.
    Processes(ProcessObserver),
    /// Observes the reports of wrappers.
    Locks(LockDir),
}

impl Observer {
    pub(crate) fn of_processes(procfs: Procfs) -> Self {
        Self::Processes(ProcessObserver::new(procfs, HOSTS_FILE))
    }

    pub(crate) fn of_locks(directory: &Path) -> Self {
        Self::Locks(LockDir::new(directory))
    }

    /// Returns what has happened since the last call.
    pub(crate) fn check(&mut self, pod: &PodState, now: Duration) -> Vec<Event> {
        match self {
            Self::Processes(processes) => processes.check(pod, now),
            Self::Locks(locks) => locks.check(pod, now),
        }
    }

    /// Watches containers that an earlier run of the shim saw running. Returns what may have happened since.
    pub(crate) fn reattach(&mut self, pod: &PodState, now: Duration) -> Vec<Event> {
        match self {
            Self::Processes(processes) => processes.reattach(pod),
            // The lock file shows if the container runs.
            Self::Locks(locks) => locks.check(pod, now),
        }
    }

    /// Returns the descriptors for a poll that wakes when something happens.
    pub(crate) fn poll_fds(&self, pod: &PodState, now: Duration) -> Vec<PollFd<'_>> {
        match self {
            Self::Processes(processes) => processes.poll_fds(pod, now),
            Self::Locks(locks) => locks.poll_fd().into_iter().collect(),
        }
    }

    /// Returns the longest wait until the next [`check`](Self::check).
    pub(crate) fn poll_interval(&self, pod: &PodState, now: Duration) -> Option<Duration> {
        match self {
            Self::Processes(processes) => processes.poll_interval(pod, now),
            Self::Locks(locks) => locks.poll_interval(now),
        }
    }
}

/// Observes containers by their init processes.
#[derive(Debug)]
pub(crate) struct ProcessObserver {
    procfs: Procfs,
    hosts: Option<HostsFileWatch>,
    detector: StartDetector,
    last_scan: Duration,
    observed: Vec<Observed>,
}

/// Holds a process whose end is awaited.
#[derive(Debug)]
struct Observed {
    process: Process,
    /// The container's instance, or PID and start time of an unidentified process.
    id: String,
    is_identified: bool,
    /// False for an exec session that was found instead of a missed init process: its exit code is not the container's.
    is_init: bool,
}

impl ProcessObserver {
    fn new(procfs: Procfs, hosts: &str) -> Self {
        if procfs.own_instance().is_none() {
            let next = "use mode wrap, by the annotation istio-aux.io/mode";
            log::warn("containers have no names in /proc here, so none will be seen", &[("next", &next)]);
        }
        let hosts = HostsFileWatch::new(hosts).inspect_err(|error| {
            let what = "cannot watch /etc/hosts: scanning /proc 50 times a second while a container may start";
            log::warn(what, &[("error", error)]);
        });
        let own_pid = std::process::id().cast_signed();
        if let Err(error) = pidfd_open(own_pid) {
            let what =
                "pidfd_open fails: ends of containers are looked for twice a second, and exit codes stay unknown";
            log::warn(what, &[("error", &error)]);
        }
        Self {
            procfs,
            hosts: hosts.ok(),
            detector: StartDetector::new(own_pid),
            last_scan: Duration::ZERO,
            observed: Vec::new(),
        }
    }

    fn check(&mut self, pod: &PodState, now: Duration) -> Vec<Event> {
        let mut events = self.check_observed();
        // Announcements are read after the scan, so that each found start has been announced, even if this process was
        // kept from running for long.
        let scan = self.scan(pod, now);
        let announced = self.hosts.as_mut().map_or(0, HostsFileWatch::drain);
        if announced > 0 {
            events.push(Event::StartsAnnounced(announced));
        }
        events.extend(scan);
        events
    }

    fn check_observed(&mut self) -> Vec<Event> {
        let (mut events, procfs) = (Vec::new(), &self.procfs);
        self.observed.retain_mut(|observed| {
            let (id, is_identified) = (observed.id.clone(), observed.is_identified);
            match observed.process.check(procfs) {
                None => return true,
                Some(ProcessEvent::Ended) => {
                    events.extend(is_identified.then_some(Event::Ended { instance: id }));
                    return true;
                }
                Some(ProcessEvent::Reaped(code)) if is_identified => {
                    events.push(Event::Reaped { instance: id, code: code.filter(|_| observed.is_init) });
                }
                Some(ProcessEvent::Reaped(code)) => events.push(Event::UnidentifiedExit { process: id, code }),
            }
            false
        });
        events
    }

    /// Scans for new processes if that is due.
    fn scan(&mut self, pod: &PodState, now: Duration) -> Vec<Event> {
        let Some(interval) = self.scan_interval(pod, now) else { return Vec::new() };
        if now < self.last_scan + interval {
            return Vec::new();
        }
        self.last_scan = now;
        let found = self.detector.scan(&self.procfs, pod.scan_interval(now).is_some(), now);
        let mut events = Vec::new();
        if found.pid_missed {
            events.push(Event::PidMissed);
        }
        for named in found.named {
            self.start(named, pod, &mut events);
        }
        self.observed.extend(found.unidentified.into_iter().map(|process| {
            let id = format!("{}-{}", process.pid, process.started);
            Observed { process, id, is_identified: false, is_init: true }
        }));
        events.extend(self.check_observed());
        events.push(Event::Scanned);
        events
    }

    /// Reports a container's start, unless the process is an exec session in a container that is known.
    fn start(
        &mut self,
        NamedProcess { root, process, is_init }: NamedProcess,
        pod: &PodState,
        events: &mut Vec<Event>,
    ) {
        let Some(ContainerInstance { container, id }) = root.instance else { return };
        let is_observed = self.observed.iter().any(|observed| observed.id == id);
        if is_observed || pod.containers.iter().any(|known| known.instance.as_ref().is_some_and(|last| last.id == id)) {
            return;
        }
        let is_ours = pod.containers.iter().any(|known| known.name == container);
        let instance = Instance { id: id.clone(), pid: root.pid, started: started(root.started) };
        events.push(Event::Started { container, instance });
        match process.or_else(|| Process::open(root.pid, root.started, &self.procfs)) {
            Some(process) if is_ours => self.observed.push(Observed { process, id, is_identified: true, is_init }),
            Some(_) => {}
            None => events.push(Event::Reaped { instance: id, code: None }),
        }
    }

    fn reattach(&mut self, pod: &PodState) -> Vec<Event> {
        // A start may have been announced while the shim did not run.
        let mut events = vec![Event::StartsAnnounced(1)];
        for container in &pod.containers {
            let (ContainerState::Running, Some(instance)) = (container.state, &container.instance) else { continue };
            match Process::open(instance.pid, ticks(instance.started), &self.procfs) {
                Some(process) => {
                    self.observed.push(Observed {
                        process,
                        id: instance.id.clone(),
                        is_identified: true,
                        is_init: true,
                    });
                }
                None => events.push(Event::Reaped { instance: instance.id.clone(), code: None }),
            }
        }
        events
    }

    fn poll_fds(&self, pod: &PodState, now: Duration) -> Vec<PollFd<'_>> {
        let observed = self.observed.iter().filter_map(|observed| observed.process.poll_fd());
        // Scans are frequent, so no announcement needs to wake the poll.
        let is_scanning = self.scan_interval(pod, now).is_some_and(|interval| interval < Duration::from_millis(20));
        let hosts = self.hosts.iter().filter(|_| !is_scanning).map(HostsFileWatch::poll_fd);
        observed.chain(hosts).collect()
    }

    fn poll_interval(&self, pod: &PodState, now: Duration) -> Option<Duration> {
        let scan = self.scan_interval(pod, now).map(|interval| (self.last_scan + interval).saturating_sub(now));
        self.observed.iter().filter_map(|observed| observed.process.poll_interval()).chain(scan).min()
    }

    fn scan_interval(&self, pod: &PodState, now: Duration) -> Option<Duration> {
        pod.scan_interval(now).into_iter().chain(self.detector.scan_interval(now)).min()
    }
}

/// Converts a start time in clock ticks. The kernel reports hundredths of a second (`USER_HZ`).
fn started(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(10))
}

fn ticks(started: Duration) -> u64 {
    u64::try_from(started.as_millis() / 10).unwrap_or_default()
}
