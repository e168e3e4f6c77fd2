//! Mode native: the shim is a container of its own, which sees the others in a shared PID namespace.

use contract::args::WatchArgs;
use contract::names::STATE_DIR;

use super::PatchBuilder;
use super::shim::{self, Shim};

pub(super) fn add(shim: &Shim, watch: &WatchArgs, patch: &mut PatchBuilder) {
    let state = Some(format!("{STATE_DIR}/seen"));
    let watch = WatchArgs { state, stay: shim.facts.has_other_native_sidecars, ..watch.clone() };
    patch.init_container(shim.native_sidecar(&watch));
    patch.volume(shim::state_volume());
    patch.share_process_namespace();
}
