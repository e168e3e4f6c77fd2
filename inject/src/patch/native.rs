//! Modes native and status: the shim is a container of its own. In mode native it sees the others in a shared PID namespace.

use contract::args::WatchArgs;
use contract::names::{ANNOTATIONS_DIR, ANNOTATIONS_FILE};

use super::PatchBuilder;
use super::shim::{self, Shim};

pub(super) fn add(shim: &Shim, watch: &WatchArgs, patch: &mut PatchBuilder) {
    let annotations = Some(format!("{ANNOTATIONS_DIR}/{ANNOTATIONS_FILE}"));
    let watch = WatchArgs { annotations, ..watch.clone() };
    patch.init_container(shim.native_sidecar(&watch));
    patch.volume(shim::annotations_volume());
    if !watch.report_only {
        patch.share_process_namespace();
    }
}
