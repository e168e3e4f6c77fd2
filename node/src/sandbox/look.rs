//! Decides for each sandbox, by what the runtime, the plugin and the API server report and what the agent has of it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cni::protocol::Sandbox;

use super::State;
use crate::containerd::Listed;

/// Is what is known of a sandbox that the node has containers or files of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// It runs by the runtime's list; or its pod lives, so that it may run soon, or its DEL comes.
    Lives,
    /// The plugin could not report its DEL; another sandbox of its pod is ready; or the API server says that its pod is over.
    Over,
}

impl Word {
    /// Returns what the plugin's tombstones and the runtime's list say of a sandbox; `None` where the API server is to be asked.
    /// The list does not have a sandbox whose network has just been set up, and has one that has ended for as long as its pod
    /// exists. The kubelet runs one of a pod at a time.
    #[must_use]
    pub fn of(sandbox: &Sandbox, has_tombstone: bool, listed: &[Listed]) -> Option<Self> {
        if has_tombstone {
            return Some(Self::Over);
        }
        let mut of_pod = listed.iter().filter(|one| one.is_ready && one.uid == sandbox.uid).peekable();
        of_pod.peek()?;
        Some(if of_pod.any(|one| one.id == sandbox.id) { Self::Lives } else { Self::Over })
    }
}

/// Holds what a look has found.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// What is known of each sandbox that has containers or files.
    pub words: BTreeMap<String, Word>,
    /// The sandboxes whose serving proxy is of another image than new ones are.
    pub outdated: BTreeSet<String>,
}

/// Is what the agent has of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// It manages the sandbox' proxy.
    Managed(State),
    /// There are files of an earlier agent, whose proxy has served.
    Served,
    /// There may be containers or files of a start that was cut off. The plugin repeats its request while the runtime waits for it.
    Unserved,
}

/// Is what the agent does about a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Leave,
    /// Take over the proxy of an earlier agent.
    Adopt,
    /// Remove the proxy, its containers and its files.
    Remove,
}

/// Decides about a sandbox.
pub(super) fn verdict(held: Held, word: Word) -> Verdict {
    match (held, word) {
        // The plugin waits for a start or a removal, and the runtime for the plugin.
        (Held::Managed(State::Starting | State::Removing { .. }), _)
        | (Held::Managed(_) | Held::Unserved, Word::Lives) => Verdict::Leave,
        (_, Word::Over) => Verdict::Remove,
        (Held::Served, Word::Lives) => Verdict::Adopt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(id: &str, uid: &str, is_ready: bool) -> Listed {
        Listed { id: id.into(), uid: uid.into(), is_ready, ..Listed::default() }
    }

    #[test]
    fn word_is_asked_where_it_is_known() {
        let sandbox = Sandbox { id: "one".into(), uid: "u1".into(), ..Sandbox::default() };
        for (why, has_tombstone, list, expected) in [
            ("its network has just been set up", false, vec![], None),
            ("it runs", false, vec![listed("one", "u1", true)], Some(Word::Lives)),
            ("two run", false, vec![listed("two", "u1", true), listed("one", "u1", true)], Some(Word::Lives)),
            ("it has ended", false, vec![listed("one", "u1", false)], None),
            ("its DEL was not reported", true, vec![listed("one", "u1", false)], Some(Word::Over)),
            ("its pod has another sandbox", false, vec![listed("two", "u1", true)], Some(Word::Over)),
            ("it replaces one that has ended", false, vec![listed("two", "u1", false)], None),
            ("another pod runs", false, vec![listed("two", "u2", true)], None),
        ] {
            assert_eq!(Word::of(&sandbox, has_tombstone, &list), expected, "{why}");
        }
    }

    #[test]
    fn verdict_is_about_what_the_agent_has() {
        use State::{Ready, Removing, Restarting, Starting, Upgrading};
        use Verdict::{Adopt, Leave, Remove};
        for (held, lives, over) in [
            (Held::Unserved, Leave, Remove),
            (Held::Served, Adopt, Remove),
            (Held::Managed(Ready { failures: 0 }), Leave, Remove),
            (Held::Managed(Upgrading { failures: 0 }), Leave, Remove),
            (Held::Managed(Restarting { failures: 3 }), Leave, Remove),
            (Held::Managed(Starting), Leave, Leave),
            (Held::Managed(Removing { then_start: false }), Leave, Leave),
            (Held::Managed(Removing { then_start: true }), Leave, Leave),
        ] {
            assert_eq!([Word::Lives, Word::Over].map(|word| verdict(held, word)), [lives, over], "{held:?}");
        }
    }
}
