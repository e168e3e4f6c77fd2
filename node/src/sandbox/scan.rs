//! Decides for each sandbox, by what the runtime, the plugin and the API server report and what the agent has of it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cni::protocol::Sandbox;

use super::State;
use crate::containerd::Listed;

/// Tells whether a sandbox still exists that the node has containers or files of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxStatus {
    /// The runtime lists it as ready; or its pod exists, so it may run soon, or a DEL follows.
    Alive,
    /// It has a tombstone, another sandbox of its pod is ready, or its pod has ended or was deleted.
    Gone,
}

impl SandboxStatus {
    /// Returns the state by the plugin's tombstones and the runtime's list; `None` if only the API server knows. The list lacks
    /// a sandbox whose network was just set up, and keeps an ended one while its pod exists. A pod has one ready sandbox at a
    /// time.
    #[must_use]
    pub fn of(sandbox: &Sandbox, has_tombstone: bool, listed: &[Listed]) -> Option<Self> {
        if has_tombstone {
            return Some(Self::Gone);
        }
        let mut of_pod = listed.iter().filter(|one| one.is_ready && one.uid == sandbox.uid).peekable();
        of_pod.peek()?;
        Some(if of_pod.any(|one| one.id == sandbox.id) { Self::Alive } else { Self::Gone })
    }
}

/// Holds the result of a scan of the node.
#[derive(Debug, Clone, Default)]
pub struct NodeScan {
    /// The state of each sandbox that has containers or files.
    pub statuses: BTreeMap<String, SandboxStatus>,
    /// The sandboxes whose serving proxy is of another image than new ones are.
    pub outdated: BTreeSet<String>,
}

/// Describes what the agent has of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalState {
    /// It manages the sandbox' proxy.
    Managed(State),
    /// There are files of an earlier agent, whose proxy has served.
    Served,
    /// An interrupted start may have left containers or files. The plugin repeats its request while the runtime waits.
    Unserved,
}

/// Says what the agent does with a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nothing.
    Leave,
    /// Take over the proxy of an earlier agent.
    Adopt,
    /// Remove the proxy, its containers and its files.
    Remove,
}

/// Decides about a sandbox.
pub(super) fn decide(local: LocalState, status: SandboxStatus) -> Decision {
    match (local, status) {
        // The plugin waits for a start or a removal, and the runtime for the plugin.
        (LocalState::Managed(State::Starting | State::Removing { .. }), _)
        | (LocalState::Managed(_) | LocalState::Unserved, SandboxStatus::Alive) => Decision::Leave,
        (_, SandboxStatus::Gone) => Decision::Remove,
        (LocalState::Served, SandboxStatus::Alive) => Decision::Adopt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(id: &str, uid: &str, is_ready: bool) -> Listed {
        Listed { id: id.into(), uid: uid.into(), is_ready, ..Listed::default() }
    }

    #[test]
    fn status_comes_from_tombstones_and_list() {
        let sandbox = Sandbox { id: "one".into(), uid: "u1".into(), ..Sandbox::default() };
        for (why, has_tombstone, list, expected) in [
            ("its network has just been set up", false, vec![], None),
            ("it runs", false, vec![listed("one", "u1", true)], Some(SandboxStatus::Alive)),
            ("two run", false, vec![listed("two", "u1", true), listed("one", "u1", true)], Some(SandboxStatus::Alive)),
            ("it has ended", false, vec![listed("one", "u1", false)], None),
            ("its DEL was not reported", true, vec![listed("one", "u1", false)], Some(SandboxStatus::Gone)),
            ("its pod has another sandbox", false, vec![listed("two", "u1", true)], Some(SandboxStatus::Gone)),
            ("it replaces one that has ended", false, vec![listed("two", "u1", false)], None),
            ("another pod runs", false, vec![listed("two", "u2", true)], None),
        ] {
            assert_eq!(SandboxStatus::of(&sandbox, has_tombstone, &list), expected, "{why}");
        }
    }

    #[test]
    fn decision_depends_on_local_state() {
        use Decision::{Adopt, Leave, Remove};
        use State::{Ready, Removing, Restarting, Starting, Upgrading};
        for (local, lives, over) in [
            (LocalState::Unserved, Leave, Remove),
            (LocalState::Served, Adopt, Remove),
            (LocalState::Managed(Ready { failures: 0 }), Leave, Remove),
            (LocalState::Managed(Upgrading { failures: 0 }), Leave, Remove),
            (LocalState::Managed(Restarting { failures: 3 }), Leave, Remove),
            (LocalState::Managed(Starting), Leave, Leave),
            (LocalState::Managed(Removing { then_start: false }), Leave, Leave),
            (LocalState::Managed(Removing { then_start: true }), Leave, Leave),
        ] {
            assert_eq!(
                [SandboxStatus::Alive, SandboxStatus::Gone].map(|status| decide(local, status)),
                [lives, over],
                "{local:?}"
            );
        }
    }
}
