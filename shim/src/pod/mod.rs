//! What is known of the pod's containers, and what to do next. Pure: no process, file, socket or clock.
//!
//! The observers report [`Event`]s; [`PodState::apply`] takes them in and [`PodState::next`] decides. A container
//! finishes only by an end that was observed. Whatever is inferred can delay the proxy's end, never bring it about.

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

/// How a container's init process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Exit code as the kubelet reports it: 0 to 255, or 128 + n where signal n ended it.
    Code(i32),
    /// It has ended, and its parent has not reaped it yet: the kernel reports the code after that.
    NotReaped,
    /// It has ended, and nobody reports the code.
    Unknown,
}

/// Where a container is in its life cycle. Times are since the machine's boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerState {
    /// Not started yet.
    Waiting,
    /// Its init process runs.
    Running,
    /// Its init process has ended.
    Terminated { exit: Exit, at: Duration },
}

/// What a container is to the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The proxy is needed until this one has finished.
    Awaited,
    /// A regular container that is not waited for. The shim exits after it.
    Helper,
    /// The proxy.
    Proxy,
}

/// One start of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    /// Differs for each start.
    pub(crate) id: String,
    /// Its init process; 0 where only a lock shows the container.
    pub(crate) pid: i32,
    /// When it started, since the machine's boot.
    pub(crate) started: Duration,
}

/// A regular container of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) policy: ContainerPolicy,
    /// The kubelet may restart it after any exit code: it has a liveness or startup probe, or a resize policy.
    pub(crate) may_restart: bool,
    pub(crate) state: ContainerState,
    /// The start that was observed last.
    pub(crate) instance: Option<Instance>,
    /// How many starts were observed after the first.
    pub(crate) restarts: u32,
    /// All containers are being restarted (KEP-5532), and this one has not been yet.
    pub(crate) restart_pending: bool,
    /// Its end is an unidentified one that no other container of the pod can have had. Until this time a restart that was
    /// due may show that the end was an ephemeral container's.
    pub(crate) assumed_until: Option<Duration>,
}

/// What an observer has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The kubelet has written the pod's hosts file so many times, as it does before it creates a container.
    StartsAnnounced(usize),
    /// A container's init process exists.
    Started { container: String, instance: Instance },
    /// The init process of this instance has ended.
    Ended { instance: String },
    /// Its parent has reaped it. The code is there where the kernel reports it.
    Reaped { instance: String, code: Option<i32> },
    /// The init process of a container has ended, and been reaped, before it had the container's mounts.
    UnidentifiedExit { process: String, code: Option<i32> },
    /// A process has ended before anything could be seen of it.
    PidMissed,
    /// All events of processes that exist now have been reported.
    Scanned,
}

/// What an event has changed, for the log and the state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The container of this index has started.
    Started(usize),
    /// It has ended; its code is not known yet.
    Ended(usize),
    /// It has ended and been reaped.
    Reaped(usize),
    /// A container has come and gone, and it is not known which.
    Unidentified(Exit),
    /// A start was announced, and nothing was seen of it.
    NeverSeen,
}

/// The pod as it was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodState {
    pub(crate) containers: Vec<Container>,
    pub(crate) unidentified: Vec<UnidentifiedExit>,
    starts: PendingStarts,
    retry_window: Option<Duration>,
}

impl PodState {
    /// A pod of which nothing was observed. Announcements are listened to from `now` on.
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

    /// Takes in an event. Returns what it has changed.
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
            // The same, or an earlier one that was reported late.
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

    /// Every container is restarted, but for those that have started since this time.
    fn restart_all(&mut self, since: Option<Duration>) {
        let has_been = |instance: &Instance| since.is_some_and(|since| instance.started >= since);
        for container in &mut self.containers {
            container.restart_pending |= !container.instance.as_ref().is_some_and(has_been);
        }
        self.unidentified.clear();
    }

    /// The proxy's container.
    pub(crate) fn proxy(&self) -> &Container {
        // The constructor puts it last.
        &self.containers[self.containers.len() - 1]
    }

    /// Whether the proxy runs now.
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
