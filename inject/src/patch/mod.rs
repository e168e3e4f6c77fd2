//! Renders a plan as a JSON Patch (RFC 6902): each mode has its file, and `builder` the operations.

mod builder;
mod native;
mod proxy;
mod shim;
mod start_after;

use contract::names::ENDED_ANNOTATION;
use json_patch::Patch;

pub(crate) use self::builder::PatchBuilder;
use self::shim::Shim;
use crate::facts::Facts;
use crate::plan::{Change, Plan};
use crate::{Mode, Settings};

/// Renders a plan as a patch.
pub(crate) fn render(plan: &Plan, facts: &Facts, settings: &Settings) -> Patch {
    let mut patch = PatchBuilder::new(facts.pod);
    // A new pod has it only as a copy of another's.
    patch.remove_annotation(ENDED_ANNOTATION);
    let runs_the_image = |change: &Change| matches!(change, Change::Shim { .. } | Change::StartAfterCollector { .. });
    if plan.changes.iter().any(runs_the_image) {
        settings.pull_secrets.iter().for_each(|name| patch.pull_secret(name));
    }
    for change in &plan.changes {
        match change {
            Change::Annotation { key, value } => patch.annotation(key, value),
            Change::Label { key, value } => patch.label(key, value),
            Change::HoldAtProxy { index } => patch.hold_at_proxy(*index),
            Change::Args { index, words } => patch.append_args(*index, words),
            Change::StartAfterCollector { index, resources } => {
                let shim = Shim { settings, facts, resources: resources.as_ref() };
                start_after::add(&shim, *index, &mut patch);
            }
            Change::Shim { watch, resources } => {
                let shim = Shim { settings, facts, resources: resources.as_ref() };
                // Without native sidecars, the shim is the parent of pilot-agent in mode status, too.
                if plan.mode == Mode::Proxy || !settings.native_sidecars {
                    proxy::add(&shim, watch, &mut patch);
                } else {
                    native::add(&shim, watch, &mut patch);
                }
            }
        }
    }
    patch.finish()
}
