//! Tracks the pod's containers and decides what to do next. Pure: no process, file, socket or clock.
//!
//! The observers report [`Event`]s; [`PodState::apply`] takes them in and [`PodState::next`] decides. A container
//! finishes only by an observed exit. An inferred one can only delay the proxy's end.

#[cfg(test)]
mod cases;
#[cfg(test)]
mod choices;
#[cfg(test)]
mod kubelet;
#[cfg(test)]
mod lying_observer;
mod next;
#[cfg(test)]
mod properties;
mod restart;
mod starts;
mod unidentified;

use std::fmt;
use std::time::Duration;

use contract::args::WatchArgs;
use contract::policy::ContainerPolicy;

pub(crate) use next::Action;
use starts::PendingStarts;
pub(crate) use unidentified::UnidentifiedExit;

/// The exit of a container's init process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Exit code as the kubelet reports it: 0 to 255, or 128 + n if signal n ended it.
    Code(i32),
    /// Its parent has not reaped it yet; the kernel reports the code after that.
    NotReaped,
    /// The kernel does not report the code.
    Unknown,
}

/// The state of a container. Times are since the machine's boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerState {
    /// Not started yet.
    Waiting,
    /// Its init process runs.
    Running,
    /// Its init process has ended.
    Terminated { exit: Exit, at: Duration },
}

/// The role of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A container that needs the proxy until it has finished.
    Awaited,
    /// A regular container that is not awaited. The shim exits after it.
    Helper,
    /// The proxy.
    Proxy,
}

/// Identifies a start of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    /// An id that differs for each start.
    pub(crate) id: String,
    /// PID of its init process; 0 if only a lock shows the container.
    pub(crate) pid: i32,
    /// Start time since the machine's boot.
    pub(crate) started: Duration,
}

/// Describes a regular container of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) policy: ContainerPolicy,
    /// True if the kubelet may restart it after any exit code: it has a liveness or startup probe, or a resize policy.
    pub(crate) may_restart: bool,
    pub(crate) state: ContainerState,
    /// The last observed start.
    pub(crate) instance: Option<Instance>,
    /// Number of observed starts after the first.
    pub(crate) restarts: u32,
    /// True if all containers are being restarted (KEP-5532) and this one has not been yet.
    pub(crate) restart_pending: bool,
    /// Set if its exit is an unidentified one without another candidate. Until this time, a restart that was due may show
    /// that the exit was an ephemeral container's.
    pub(crate) assumed_until: Option<Duration>,
}

/// Reports an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The kubelet rewrote `/etc/hosts` this many times; it does so before creating a container.
    StartsAnnounced(usize),
    /// A container's init process exists.
    Started { container: String, instance: Instance },
    /// The init process of this instance has ended.
    Ended { instance: String },
    /// The parent of this instance's init process has reaped it. `None` if the kernel does not report the code.
    Reaped { instance: String, code: Option<i32> },
    /// An init process was reaped before it had the container's mounts.
    UnidentifiedExit { process: String, code: Option<i32> },
    /// A process ended before it could be looked up.
    PidMissed,
    /// All events of processes that exist now have been reported.
    Scanned,
}

/// Reports what an event has changed, for the log and the state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The container of this index has started.
    Started(usize),
    /// The container has ended; its code is not known yet.
    Ended(usize),
    /// The container has ended and been reaped.
    Reaped(usize),
    /// An unidentified container has started and ended.
    Unidentified(Exit),
    /// A start was announced and never observed.
    NeverSeen,
}

/// Holds the observed state of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodState {
    pub(crate) containers: Vec<Container>,
    pub(crate) unidentified: Vec<UnidentifiedExit>,
    starts: PendingStarts,
    retry_window: Option<Duration>,
}

impl PodState {
    /// Creates the state of a pod without observations. Announcements are received from `now` on.
    pub(crate) fn new(args: &WatchArgs, now: Duration) -> Self {
        let container = |role| {
            move |name: &String| Container {
                name: name.clone(),
                role,
                policy: args.policy_of(name),
                may_restart: args.may_restart.contains(name),
                state: ContainerState::Waiting,
                instance: None,
                restarts: 0,
                restart_pending: false,
                assumed_until: None,
            }
        };
        let awaited = args.awaited.iter().map(container(Role::Awaited));
        let helpers = args.helpers.iter().map(container(Role::Helper));
        let proxy = std::iter::once(&args.proxy).map(container(Role::Proxy));
        let retry_window = args.retry_window.map(|seconds| Duration::from_secs(seconds.into()));
        Self {
            containers: awaited.chain(helpers).chain(proxy).collect(),
            unidentified: Vec::new(),
            starts: PendingStarts::new(retry_window, now),
            retry_window,
        }
    }

    /// Applies an event. Returns what it has changed.
    pub(crate) fn apply(&mut self, event: Event, now: Duration) -> Option<Change> {
        match event {
            Event::StartsAnnounced(count) => {
                self.starts.announce(count, now);
                None
            }
            Event::Started { container, instance } => self.start(&container, instance),
            Event::Ended { instance } => self.end(&instance, Exit::NotReaped, now),
            Event::Reaped { instance, code } => self.end(&instance, code.map_or(Exit::Unknown, Exit::Code), now),
            Event::UnidentifiedExit { process, code } => {
                self.unidentified_exit(&process, code.map_or(Exit::Unknown, Exit::Code), now)
            }
            Event::PidMissed => {
                self.starts.pid_missed(now);
                None
            }
            Event::Scanned => self.starts.scanned(now).then_some(Change::NeverSeen),
        }
    }

    fn start(&mut self, name: &str, instance: Instance) -> Option<Change> {
        let Some(index) = self.containers.iter().position(|container| container.name == name) else {
            self.starts.foreign_start_seen(&instance);
            return None;
        };
        let container = &mut self.containers[index];
        if let Some(last) = &container.instance {
            // The same start, or an earlier one that was reported late.
            if last.id == instance.id || instance.started <= last.started {
                return None;
            }
            container.restarts += 1;
        }
        self.starts.start_seen(&instance);
        let last_state = container.state;
        container.instance = Some(instance);
        container.state = ContainerState::Running;
        container.restart_pending = false;
        container.assumed_until = None;
        if let ContainerState::Terminated { exit: Exit::Unknown, at } = last_state
            && restart::can_restart_all(&container.policy)
        {
            self.restart_all(Some(at));
        }
        self.exclude(index);
        Some(Change::Started(index))
    }

    fn end(&mut self, instance: &str, exit: Exit, now: Duration) -> Option<Change> {
        let is_of = |container: &Container| container.instance.as_ref().is_some_and(|last| last.id == instance);
        let index = self.containers.iter().position(is_of)?;
        let container = &mut self.containers[index];
        let at = match container.state {
            ContainerState::Running => now,
            ContainerState::Terminated { exit: Exit::NotReaped, at } if exit != Exit::NotReaped => at,
            ContainerState::Waiting | ContainerState::Terminated { .. } => return None,
        };
        container.state = ContainerState::Terminated { exit, at };
        if restart::restarts_all(&container.policy, exit) {
            self.restart_all(None);
        }
        Some(if exit == Exit::NotReaped { Change::Ended(index) } else { Change::Reaped(index) })
    }

    /// Marks every container as to be restarted, except those that have started since this time.
    fn restart_all(&mut self, since: Option<Duration>) {
        let has_been = |instance: &Instance| since.is_some_and(|since| instance.started >= since);
        for container in &mut self.containers {
            container.restart_pending |= !container.instance.as_ref().is_some_and(has_been);
        }
        self.unidentified.clear();
    }

    /// Returns the proxy's container.
    pub(crate) fn proxy(&self) -> &Container {
        // The constructor puts it last.
        &self.containers[self.containers.len() - 1]
    }

    /// Returns true if the proxy runs now.
    pub(crate) fn proxy_runs(&self) -> bool {
        self.proxy().state == ContainerState::Running
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => code.fmt(f),
            Self::NotReaped | Self::Unknown => f.write_str("unknown"),
        }
    }
}
