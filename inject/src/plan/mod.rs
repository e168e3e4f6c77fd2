//! The plan for a pod and its reason, as plain data. The status annotation, logs and metrics show it, and a patch applies it.

mod argo;
mod hold;
mod katib;
mod mode;
mod quit;
mod resources;
mod restarts;
mod rules;
mod wait_for;
mod warnings;

use contract::args::WatchArgs;

pub(crate) use self::resources::ResourceRequirements;
pub(crate) use self::restarts::own_policy;
pub(crate) use self::rules::{plan, reason_without_shim};
use self::warnings::Warnings;
use crate::Mode;

/// The plan for a pod.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The pod's mode once the changes are made.
    pub(crate) mode: Mode,
    pub(crate) reason: &'static str,
    pub(crate) warnings: Warnings,
    pub(crate) changes: Vec<Change>,
}

/// A change of a pod.
#[derive(Debug)]
pub(crate) enum Change {
    Annotation {
        key: &'static str,
        value: String,
    },
    Label {
        key: &'static str,
        value: &'static str,
    },
    /// The proxy at this index holds the start of the containers after it, and becomes the first.
    HoldAtProxy {
        index: usize,
    },
    /// These words are appended to a regular container's `args`.
    Args {
        index: usize,
        words: &'static [&'static str],
    },
    /// The command of the container at this index, a Katib training, starts after its metrics collector.
    StartAfterCollector {
        index: usize,
        resources: Option<ResourceRequirements>,
    },
    /// The shim is added, in the plan's mode.
    Shim {
        watch: Box<WatchArgs>,
        resources: Option<ResourceRequirements>,
    },
}

impl Plan {
    /// Returns the plan without a change.
    fn unchanged(reason: &'static str) -> Self {
        Self { mode: Mode::Off, reason, warnings: Warnings::default(), changes: Vec::new() }
    }
}
