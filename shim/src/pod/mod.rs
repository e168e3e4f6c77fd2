//! Holds what is known of the pod's containers, and decides what to do next. Pure: no process, file, socket or clock.
//!
//! An observed exit counts if the kubelet does not restart the container after it. Any other counts once the kubelet reports, by
//! an annotation, that the awaited containers have ended for good. Nothing is inferred.

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;

use contract::args::WatchArgs;
use contract::policy::RestartPolicy;

/// The role of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A container that needs the proxy until it has finished.
    Awaited,
    /// The proxy.
    Proxy,
}

/// The end of a container's init process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Exit code as the kubelet reports it: 0 to 255, or 128 + n if signal n ended it. `None` if the kernel does not report it.
    pub(crate) code: Option<i32>,
    /// True if the process was seen to execute the container's command. Otherwise the runtime may create it again.
    pub(crate) has_executed: bool,
}

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContainerState {
    /// No start was observed.
    Waiting,
    /// This start was observed, by an id that differs for each.
    Running(String),
    /// The observed start has ended.
    Ended(String, Exit),
}

/// Describes a regular container of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The policy by which the kubelet starts it again; `None` where only the kubelet knows if it does.
    restarts: Option<RestartPolicy>,
    pub(crate) state: ContainerState,
}

/// Reports an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A container's init process exists.
    Started { container: String, id: String, pid: i32 },
    /// The container with this start has ended, and its parent has reaped it.
    Ended { id: String, exit: Exit },
}

/// Tells how the end of the awaited containers became known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownBy {
    /// Each was observed, and was final by itself.
    Exit,
    /// The kubelet has reported it.
    Kubelet,
}

/// Holds what is known of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodState {
    pub(crate) containers: Vec<Container>,
    /// True while the kubelet's report says that the awaited containers have ended for good.
    is_reported: bool,
}

impl PodState {
    /// Creates the state of a pod without observations.
    pub(crate) fn new(args: &WatchArgs) -> Self {
        let container = |role| {
            move |name: &String| {
                // The kubelet starts the proxy again after a failed probe, or with another image, under any policy.
                let is_known = role == Role::Awaited && !args.may_restart.contains(name);
                let restarts = is_known.then_some(args.restart_policy);
                Container { name: name.clone(), role, restarts, state: ContainerState::Waiting }
            }
        };
        let awaited = args.awaited.iter().map(container(Role::Awaited));
        let proxy = std::iter::once(&args.proxy).map(container(Role::Proxy));
        Self { containers: awaited.chain(proxy).collect(), is_reported: false }
    }

    /// Applies an event. Returns the index of the container that it has changed.
    pub(crate) fn apply(&mut self, event: &Event) -> Option<usize> {
        let (index, state) = match event {
            Event::Started { container, id, .. } => {
                let index = self.containers.iter().position(|known| known.name == *container)?;
                (index, ContainerState::Running(id.clone()))
            }
            Event::Ended { id, exit } => {
                let is_of =
                    |known: &Container| matches!(&known.state, ContainerState::Running(running) if running == id);
                (self.containers.iter().position(is_of)?, ContainerState::Ended(id.clone(), *exit))
            }
        };
        let before = std::mem::replace(&mut self.containers[index].state, state);
        let changed = &self.containers[index];
        let is_new = changed.state != before;
        if changed.role == Role::Proxy && changed.is_running() && matches!(before, ContainerState::Ended(..)) {
            // A restarted container runtime may have lost these codes, and then the kubelet starts what has ended again as well.
            for container in &mut self.containers {
                if let ContainerState::Ended(_, exit) = &mut container.state {
                    exit.code = None;
                }
            }
        }
        is_new.then_some(index)
    }

    /// Takes in the kubelet's report.
    pub(crate) fn set_reported(&mut self, is_reported: bool) {
        self.is_reported = is_reported;
    }

    /// Returns how it is known that every awaited container has ended for good; `None` if it is not.
    pub(crate) fn finished_by(&self) -> Option<KnownBy> {
        if self.sees_awaited_run() {
            // Any report is older than that run.
            return None;
        }
        let mut awaited = self.awaited();
        if awaited.all(Container::has_ended_for_good) {
            Some(KnownBy::Exit)
        } else {
            self.is_reported.then_some(KnownBy::Kubelet)
        }
    }

    /// Returns true if an awaited container is observed to run, so that a report of the kubelet would be outdated.
    pub(crate) fn sees_awaited_run(&self) -> bool {
        self.awaited().any(Container::is_running)
    }

    /// Returns true if this start of a container was observed, and none after it.
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.containers.iter().any(|container| container.last_start() == Some(id))
    }

    /// Returns true if a container may start at any time.
    pub(crate) fn expects_start(&self) -> bool {
        self.containers.iter().any(|container| !container.is_running() && !container.has_ended_for_good())
    }

    /// Returns true if the proxy was not observed to end: one that was never seen may run, too.
    pub(crate) fn proxy_may_run(&self) -> bool {
        !matches!(self.proxy().state, ContainerState::Ended(..))
    }

    /// Returns true if any awaited container has been started.
    pub(crate) fn payload_has_started(&self) -> bool {
        self.awaited().any(|container| container.state != ContainerState::Waiting)
    }

    fn awaited(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.role == Role::Awaited)
    }

    /// Returns the proxy's container.
    pub(crate) fn proxy(&self) -> &Container {
        // The constructor puts it last.
        &self.containers[self.containers.len() - 1]
    }
}

impl Container {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, ContainerState::Running(_))
    }

    fn last_start(&self) -> Option<&str> {
        match &self.state {
            ContainerState::Waiting => None,
            ContainerState::Running(id) | ContainerState::Ended(id, _) => Some(id),
        }
    }

    /// Returns true if it was observed to end, and the kubelet does not start it again.
    fn has_ended_for_good(&self) -> bool {
        let ContainerState::Ended(_, Exit { code, has_executed }) = self.state else { return false };
        match self.restarts {
            // Exit code 0 is the command's own: a runtime that cannot execute it exits with another code.
            Some(RestartPolicy::Never | RestartPolicy::OnFailure) if code == Some(0) => true,
            // A signal may mean a changed image.
            Some(RestartPolicy::Never) => has_executed && code.is_none_or(|code| code < 128),
            Some(RestartPolicy::OnFailure | RestartPolicy::Always) | None => false,
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            Some(code) => code.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

impl std::fmt::Display for KnownBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exit => "exit",
            Self::Kubelet => "kubelet",
        })
    }
}
