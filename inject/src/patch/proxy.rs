//! Mode proxy, and status without native sidecars: the shim is the parent of pilot-agent. In mode proxy it sees the other
//! containers in a shared PID namespace.

use contract::args::WatchArgs;
use contract::names::{ANNOTATIONS_DIR, ANNOTATIONS_FILE, ISTIO_POD_DIR, SHIM_BINARY};

use super::PatchBuilder;
use super::shim::{self, Shim};
use crate::Delivery;
use crate::facts::pod::Container;

pub(super) fn add(shim: &Shim, watch: &WatchArgs, patch: &mut PatchBuilder) {
    deliver(shim, patch);
    if !watch.report_only {
        patch.share_process_namespace();
    }
    supervise(shim, watch, patch);
}

/// Adds the volume of the binary, and the container that fills it where there is one.
pub(super) fn deliver(shim: &Shim, patch: &mut PatchBuilder) {
    patch.volume(shim::binary_volume(shim.settings));
    if shim.settings.delivery == Delivery::Copy {
        patch.init_container(shim.installer());
    }
}

/// Makes the shim the parent of the proxy's command. The proxy becomes the first container: the shim could miss what starts
/// before it.
fn supervise(shim: &Shim, watch: &WatchArgs, patch: &mut PatchBuilder) {
    let Some((index, proxy)) = shim.facts.classic_proxy() else { return };
    patch.mount(index, shim::binary_mount());
    let has_annotations = proxy.volume_mounts.iter().flatten().any(|mount| mount.mount_path == ISTIO_POD_DIR);
    let directory = if has_annotations { ISTIO_POD_DIR } else { ANNOTATIONS_DIR };
    if !has_annotations {
        patch.volume(shim::annotations_volume());
        patch.mount(index, shim::annotations_mount());
    }
    let watch = WatchArgs { annotations: Some(format!("{directory}/{ANNOTATIONS_FILE}")), ..watch.clone() };
    let mut words = watch.to_supervising_command(SHIM_BINARY);
    words.extend(command_of(proxy));
    if !proxy.has_command() {
        words.push(shim.settings.proxy_command.clone());
    }
    patch.command(index, &words);
    patch.move_to_front(index);
}

pub(super) fn command_of(container: &Container) -> impl Iterator<Item = String> {
    container.command.iter().flatten().cloned()
}
