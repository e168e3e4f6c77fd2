//! One state machine for each sandbox. It is pure: [`State::apply`] takes an event and returns actions.

mod scan;
mod supervisor;
#[cfg(test)]
mod tests;

use std::time::Duration;

use api::events::EventNote;

pub use self::scan::{NodeScan, SandboxStatus};
pub use self::supervisor::{Proxies, Supervisor};
use crate::error::{Error, Result};

const RESTART_BACKOFF_MIN: Duration = Duration::from_secs(1);
const RESTART_BACKOFF_MAX: Duration = Duration::from_mins(1);
/// After serving this long, a proxy's back-off is reset, as a container's is (kubelet: twice
/// `MaxContainerBackOff`, by `hasExpired` in client-go's `util/flowcontrol/backoff.go`).
const BACKOFF_RESET_AFTER: Duration = Duration::from_mins(10);
const UPGRADE_RETRY_DELAY: Duration = Duration::from_mins(10);
const REMOVE_RETRY_DELAY: Duration = Duration::from_secs(1);

const REMOVING: State = State::Removing { then_start: false };
const DELETED: &str = "the sandbox was deleted";

/// Holds the state of a sandbox' proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// There is no proxy.
    #[default]
    Absent,
    /// The first proxy is being started; the pod's containers wait for it.
    Starting,
    /// The proxy serves.
    Ready {
        /// The number of restarts since a proxy served for ten minutes.
        failures: u32,
    },
    /// The proxy serves, and its successor is being started.
    Upgrading {
        /// As in `Ready`.
        failures: u32,
    },
    /// The proxy has ended while the pod lives, and is being started again.
    Restarting {
        /// The number of restarts before this one, since a proxy served for ten minutes.
        failures: u32,
    },
    /// The proxy is being removed.
    Removing {
        /// True if a start follows: the plugin repeated an ADD that an earlier agent did not finish.
        then_start: bool,
    },
}

/// Reports what happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The plugin asks for a proxy.
    Add,
    /// The plugin asks for the removal, or a scan has found the sandbox gone.
    Delete,
    /// The agent has found the proxy of a living sandbox, started by an earlier agent.
    Adopted,
    /// The proxy that serves is of another image than new ones are.
    Outdated,
    /// The next proxy serves in its place.
    Upgraded,
    /// The next proxy does not serve in its place.
    UpgradeFailed(Error),
    /// The proxy has become ready.
    Started,
    /// The proxy could not be started.
    StartFailed(Error),
    /// The proxy has ended by itself, after it served for so long.
    Exited(Duration),
    /// The proxy, its containers and its files are removed.
    Removed,
    /// The removal failed.
    RemoveFailed,
}

impl Event {
    /// Lists the metric labels of the events that are counted.
    pub const LABELS: [&str; 7] =
        ["started", "start_failed", "upgraded", "upgrade_failed", "exited", "removed", "remove_failed"];

    /// Returns the metric label; `None` for an event that is not counted.
    #[must_use]
    pub fn label(&self) -> Option<&'static str> {
        match self {
            Self::Started => Some("started"),
            Self::StartFailed(_) => Some("start_failed"),
            Self::Exited(_) => Some("exited"),
            Self::Removed => Some("removed"),
            Self::RemoveFailed => Some("remove_failed"),
            Self::Upgraded => Some("upgraded"),
            Self::UpgradeFailed(_) => Some("upgrade_failed"),
            Self::Add | Self::Delete | Self::Adopted | Self::Outdated => None,
        }
    }
}

/// Is an effect to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a proxy after the delay, in place of an earlier one, and report its end.
    Start(Duration),
    /// Report the end of the proxy that runs.
    Watch,
    /// Start the successor of the proxy that runs, and report the end of the one that serves then.
    Upgrade,
    /// Stop the effect that runs, then remove the proxy after the delay.
    Remove(Duration),
    /// Respond to the plugins that wait for the proxy.
    RespondAdd(Result<()>),
    /// Respond to the plugins that wait for its removal.
    RespondDelete,
}

impl State {
    /// Returns the Kubernetes event about the pod for an event in this state; `None` for what its users need not know, and for its
    /// start, about which the kubelet has events.
    #[must_use]
    pub fn note(self, event: &Event) -> Option<EventNote> {
        Some(match (self, event) {
            (Self::Ready { .. }, Event::Exited(served)) => {
                let text = format!("the proxy has ended after {} s, and is started again", served.as_secs());
                EventNote::warning("ProxyEnded", text)
            }
            (Self::Restarting { .. }, Event::StartFailed(reason)) => {
                EventNote::warning("ProxyNotStarted", format!("the proxy is not started again yet: {reason}"))
            }
            (Self::Upgrading { .. }, Event::Upgraded) => {
                EventNote::normal("ProxyUpgraded", "the proxy is upgraded".to_owned())
            }
            (Self::Upgrading { .. }, Event::UpgradeFailed(reason)) => {
                EventNote::warning("ProxyNotUpgraded", format!("the proxy is not upgraded, and goes on: {reason}"))
            }
            _ => return None,
        })
    }

    /// Returns the next state and the actions. An event that does not fit the state changes nothing.
    #[must_use]
    pub fn apply(self, event: &Event) -> (Self, Vec<Action>) {
        match (self, event) {
            (Self::Absent, Event::Add) => (Self::Starting, vec![Action::Start(Duration::ZERO)]),
            (Self::Absent, Event::Adopted) => (Self::Ready { failures: 0 }, vec![Action::Watch]),
            (Self::Ready { .. } | Self::Upgrading { .. }, Event::Add) => (self, vec![Action::RespondAdd(Ok(()))]),
            (Self::Ready { failures }, Event::Outdated) => (Self::Upgrading { failures }, vec![Action::Upgrade]),
            (Self::Upgrading { failures }, Event::Upgraded | Event::UpgradeFailed(_)) => {
                (Self::Ready { failures }, vec![])
            }
            (Self::Removing { .. }, Event::Add) => (Self::Removing { then_start: true }, vec![]),
            (Self::Removing { then_start: true }, Event::Delete) => {
                (REMOVING, vec![Action::RespondAdd(Err(Error::new(DELETED)))])
            }
            (Self::Starting, Event::Started) => (Self::Ready { failures: 0 }, vec![Action::RespondAdd(Ok(()))]),
            (Self::Restarting { failures }, Event::Started) => {
                (Self::Ready { failures: failures.saturating_add(1) }, vec![Action::RespondAdd(Ok(()))])
            }
            (Self::Starting, Event::StartFailed(reason)) => {
                (REMOVING, vec![Action::RespondAdd(Err(reason.clone())), Action::Remove(Duration::ZERO)])
            }
            (Self::Starting, Event::Exited(_)) => (
                REMOVING,
                vec![Action::RespondAdd(Err(Error::new("the proxy has ended"))), Action::Remove(Duration::ZERO)],
            ),
            (Self::Ready { failures }, Event::Exited(served)) => {
                restart(if *served < BACKOFF_RESET_AFTER { failures } else { 0 })
            }
            (Self::Restarting { failures }, Event::StartFailed(_) | Event::Exited(_)) => {
                restart(failures.saturating_add(1))
            }
            (Self::Absent, Event::Delete) => (REMOVING, vec![Action::Remove(Duration::ZERO)]),
            (Self::Starting | Self::Ready { .. } | Self::Upgrading { .. } | Self::Restarting { .. }, Event::Delete) => {
                (REMOVING, vec![Action::RespondAdd(Err(Error::new(DELETED))), Action::Remove(Duration::ZERO)])
            }
            (Self::Removing { then_start: false }, Event::Removed) => (Self::Absent, vec![Action::RespondDelete]),
            (Self::Removing { then_start: true }, Event::Removed) => {
                (Self::Starting, vec![Action::RespondDelete, Action::Start(Duration::ZERO)])
            }
            (Self::Removing { .. }, Event::RemoveFailed) => (self, vec![Action::Remove(REMOVE_RETRY_DELAY)]),
            (state, _) => (state, vec![]),
        }
    }
}

fn restart(failures: u32) -> (State, Vec<Action>) {
    (State::Restarting { failures }, vec![Action::Start(restart_backoff(failures))])
}

fn restart_backoff(failures: u32) -> Duration {
    RESTART_BACKOFF_MIN.saturating_mul(1 << failures.min(6)).min(RESTART_BACKOFF_MAX)
}
