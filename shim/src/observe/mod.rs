//! Observes the pod's containers in its shared PID namespace: a listing of what is alive, compared with the last one.
//!
//! Process descriptors wake the scan and give exit codes. What they miss, the next scan finds, or the kubelet reports.

mod notifier;
mod process;
mod procfs;
#[cfg(test)]
mod tests;

use std::time::Duration;

use nix::poll::PollFd;

use crate::clock::{self, cpu_time};
use crate::log;
use crate::pod::{Event, Exit, PodState};
use process::Process;
use procfs::{ContainerInstance, RootProcess};

pub(crate) use notifier::Notifier;
pub(crate) use process::exit_code;
pub(crate) use procfs::{Activity, Procfs};

/// How long scans stay frequent after a sign of a start. The runtime starts a container in a fraction of a second.
const START_EXPECTED_FOR: Duration = Duration::from_secs(30);
/// Pauses between two scans: while a process is being created, while a start is expected, and while one is possible.
const CREATION_PAUSE: Duration = Duration::from_millis(5);
const EXPECTED_PAUSE: Duration = Duration::from_millis(10);
const POSSIBLE_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two reads of the kubelet's report with inotify, in case no event comes.
const REPORT_POLL_PAUSE: Duration = Duration::from_secs(5);
/// Time in which a process in creation usually gets its container's mounts.
const CREATION_EXPECTED_WITHIN: Duration = Duration::from_secs(2);
/// No container starts, ends, and leaves an exec session behind, in less than this time.
const SHORTEST_LIFE: Duration = Duration::from_millis(50);
/// The pause after a scan is at least this multiple of the scan's CPU time, so that scans use a tenth of a CPU at most.
const LISTING_PAUSE_FACTOR: u32 = 9;

/// Observes containers by the processes that have no parent in the pod.
#[derive(Debug)]
pub(crate) struct Observer {
    procfs: Procfs,
    notifier: Option<Notifier>,
    /// True once the notifier has reported a write.
    was_notified: bool,
    own_pid: i32,
    own_instance: Option<ContainerInstance>,
    /// True if the containers share a PID namespace.
    pub(crate) is_shared: bool,
    roots: Vec<Root>,
    last_pid: Option<i32>,
    last_listing: Duration,
    last_scan: Duration,
    next_scan: Duration,
    expected_until: Duration,
    clock: fn() -> Duration,
}

/// Holds a process without a parent in the pod: a container's init process, or an exec session.
#[derive(Debug)]
struct Root {
    found: RootProcess,
    /// `None` if its container is not watched.
    process: Option<Process>,
    /// `None` while the runtime is creating it.
    instance: Option<ContainerInstance>,
    /// False if it may be an exec session, whose exit code is not the container's.
    is_init: bool,
    since: Duration,
}

impl Observer {
    /// Observes the processes of `procfs` if the containers share a PID namespace. The notifier says when to scan; without
    /// one, the observer scans at intervals.
    pub(crate) fn new(procfs: Procfs, is_shared: bool, notifier: Option<Notifier>, now: Duration) -> Self {
        let own_pid = std::process::id().cast_signed();
        let own_instance = procfs.own_instance();
        if is_shared && own_instance.is_none() {
            log::warn("containers have no names in /proc here, so the kubelet's report alone ends the proxy", &[]);
        }
        Self {
            procfs,
            notifier,
            was_notified: false,
            own_pid,
            own_instance,
            is_shared,
            roots: Vec::new(),
            last_pid: None,
            last_listing: Duration::ZERO,
            last_scan: Duration::ZERO,
            next_scan: Duration::ZERO,
            expected_until: now + START_EXPECTED_FOR,
            clock: clock::now,
        }
    }

    /// Returns what has happened since the last call.
    pub(crate) fn check(&mut self, pod: &PodState, now: Duration) -> Vec<Event> {
        if self.notifier.as_ref().is_some_and(Notifier::drain) {
            (self.was_notified, self.expected_until, self.next_scan) = (true, now + START_EXPECTED_FOR, now);
        }
        if !self.is_shared {
            return Vec::new();
        }
        let mut events = self.ended(pod, now);
        if self.needs_scans(pod, now) && now >= self.next_scan {
            let began = cpu_time();
            // The last PID of the namespace shows if there is anything new.
            let last_pid = self.procfs.last_pid();
            let is_new = last_pid.is_none() || last_pid != self.last_pid;
            if is_new || self.creation(now).is_some() || now >= self.last_listing + POSSIBLE_PAUSE {
                self.last_pid = last_pid;
                self.list(pod, now, &mut events);
                events.extend(self.ended(pod, now));
            }
            self.last_scan = now;
            self.next_scan = now + self.pause(now).max(cpu_time().saturating_sub(began) * LISTING_PAUSE_FACTOR);
        }
        events
    }

    /// Returns the descriptors for a poll that wakes when something happens.
    pub(crate) fn poll_fds(&self, now: Duration) -> Vec<PollFd<'_>> {
        let processes = self.roots.iter().filter_map(|root| root.process.as_ref()?.poll_fd());
        // While scans are frequent, do not wake for the notifier: a payload may write its hosts file all the time.
        let notifier = self.notifier.iter().filter(|_| !self.is_shared || now >= self.expected_until);
        processes.chain(notifier.map(Notifier::poll_fd)).collect()
    }

    /// Returns the longest wait until the next [`check`](Self::check).
    pub(crate) fn poll_interval(&self, pod: &PodState, now: Duration) -> Option<Duration> {
        if !self.is_shared {
            // Only the kubelet's report is awaited, and polled for: not every runtime delivers inotify events for it.
            return Some(if self.notifier.is_some() { REPORT_POLL_PAUSE } else { POSSIBLE_PAUSE });
        }
        let scan = self.needs_scans(pod, now).then(|| self.next_scan.saturating_sub(now));
        self.roots.iter().filter_map(|root| root.process.as_ref()?.poll_interval()).chain(scan).min()
    }

    /// Returns true if a container may start.
    fn needs_scans(&self, pod: &PodState, now: Duration) -> bool {
        pod.expects_start() || self.creation(now).is_some()
    }

    fn pause(&self, now: Duration) -> Duration {
        self.creation(now).unwrap_or(if now < self.expected_until { EXPECTED_PAUSE } else { POSSIBLE_PAUSE })
    }

    /// Returns the pause between two scans of processes in creation; `None` if there are none. Creation ends when the
    /// container's command is executed.
    fn creation(&self, now: Duration) -> Option<Duration> {
        let in_creation =
            |root: &&Root| root.process.is_some() && (root.instance.is_none() || !root.found.has_executed);
        let since = self.roots.iter().filter(in_creation).map(|root| root.since);
        since.map(|at| if now < at + CREATION_EXPECTED_WITHIN { CREATION_PAUSE } else { POSSIBLE_PAUSE }).min()
    }

    /// Takes in a listing of what is alive, in the order of the starts.
    fn list(&mut self, pod: &PodState, now: Duration, events: &mut Vec<Event>) {
        self.last_listing = now;
        let mut listed = self.procfs.roots();
        // CPU throttling may have stopped the shim during the scan.
        let now = now.max((self.clock)());
        listed.retain(|found| found.pid != self.own_pid);
        listed.sort_by_key(|found| (found.started, found.pid));
        let is_listed = |root: &Root| listed.iter().any(|found| found.is(root.found));
        // Keep those with a descriptor: their end is not reported yet.
        self.roots.retain(|root| root.process.is_some() || is_listed(root));
        for found in listed {
            let known = self.roots.iter().position(|root| found.is(root.found));
            let index = known.or_else(|| {
                let process = Some(Process::open(found.pid, found.started, &self.procfs)?);
                self.roots.push(Root { found, process, instance: None, is_init: true, since: now });
                Some(self.roots.len() - 1)
            });
            if let Some(index) = index {
                self.roots[index].found.has_executed |= found.has_executed;
                if self.roots[index].instance.is_none() {
                    events.extend(self.name(index, known.is_some(), pod, now));
                }
            }
        }
    }

    /// Finds a process' container, once it has its mounts.
    fn name(&mut self, index: usize, was_in_creation: bool, pod: &PodState, now: Duration) -> Option<Event> {
        let pid = self.roots[index].found.pid;
        let instance = self.procfs.instance_of(pid)?;
        let is_of_instance = |root: &Root| root.instance.as_ref() == Some(&instance);
        let is_first = !self.roots.iter().any(is_of_instance);
        let ContainerInstance { container, id } = instance.clone();
        // An earlier instance of its own container may still have processes.
        let is_own = self.own_instance.as_ref().is_some_and(|own| own.container == container);
        let is_ours = !is_own && pod.containers.iter().any(|known| known.name == container);
        let root = &mut self.roots[index];
        // Exec sessions begin with their container's mounts.
        root.is_init = is_first && (was_in_creation || now <= self.last_scan + SHORTEST_LIFE);
        root.instance = Some(instance);
        if !is_ours {
            root.process = None;
        }
        if is_first && !is_own && self.notifier.is_none() {
            self.expected_until = now + START_EXPECTED_FOR;
        }
        if !is_ours || !is_first || pod.knows(&id) {
            return None;
        }
        // The kubelet starts containers one at a time, so this is the notified start; but one that the first scan finds may be
        // older than the notification.
        if self.notifier.is_some() && !(self.was_notified && self.last_scan.is_zero()) {
            self.expected_until = now;
        }
        Some(Event::Started { container, id, pid })
    }

    /// Returns the containers that have ended.
    fn ended(&mut self, pod: &PodState, now: Duration) -> Vec<Event> {
        let (mut ended, procfs) = (Vec::new(), &self.procfs);
        self.roots.retain_mut(|root| {
            let Some(process) = &mut root.process else { return true };
            let Some(exit) = process.check(procfs, &mut root.found.has_executed) else { return true };
            if let Some(ContainerInstance { id, .. }) = root.instance.take() {
                ended.push((id, root.is_init, exit));
            }
            false
        });
        let mut events = Vec::new();
        for (id, is_init, exit) in ended {
            if is_init {
                events.push(Event::Ended { id, exit });
            } else {
                // The init process was missed; other processes may still run.
                let mut found = Vec::new();
                self.list(pod, now, &mut found);
                if !self.roots.iter().any(|root| root.instance.as_ref().is_some_and(|instance| instance.id == id)) {
                    // The exit may be an exec session's, so the container's code is unknown. Under Never that is not
                    // final, because its image may have been changed.
                    events.push(Event::Ended { id, exit: Exit { code: None, has_executed: false } });
                }
                events.extend(found);
            }
        }
        events
    }
}
