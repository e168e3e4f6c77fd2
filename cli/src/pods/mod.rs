//! Reads pods and pod templates as raw JSON: which are opted in, what was decided, and which are stuck. Pure.

mod decision;
#[cfg(test)]
pub(crate) mod fixtures;
mod image;
mod opt_in;
mod stuck;
pub(crate) mod templates;

pub(crate) use self::decision::{
    Decision, ExplainedPod, decide_now, is_rendered, recorded, sidecar, why_unchanged, with_warnings,
};
pub(crate) use self::image::{UnpulledShim, unpulled_shim};
pub(crate) use self::opt_in::{
    INJECTOR, INJECTOR_LABELS, OptIn, REVISION_LABEL, Selectors, entries, label, revision, wrong_value,
};
pub(crate) use self::stuck::{StuckPod, check_stuck, is_proxy};
pub(crate) use self::templates::pods_of;
