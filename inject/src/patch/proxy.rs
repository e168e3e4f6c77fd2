//! Mode proxy: the shim is the parent of pilot-agent, and sees the other containers in a shared PID namespace.

use contract::args::WatchArgs;
use contract::names::{ISTIO_DATA_VOLUME, SHIM_BINARY, SHIM_VOLUME};

use super::PatchBuilder;
use super::shim::{self, Shim};
use crate::Delivery;
use crate::facts::pod::Container;

pub(super) fn add(shim: &Shim, watch: &WatchArgs, patch: &mut PatchBuilder) {
    deliver(shim, SHIM_VOLUME, patch);
    patch.share_process_namespace();
    supervise(shim, watch, patch);
}

/// Adds the volume of the binary, and the container that fills it where there is one.
pub(super) fn deliver(shim: &Shim, volume: &str, patch: &mut PatchBuilder) {
    patch.volume(shim::binary_volume(volume, shim.settings));
    if shim.settings.delivery == Delivery::Copy {
        patch.init_container(shim.installer(volume));
    }
}

/// Makes the shim the parent of the proxy's command. The proxy becomes the first container: the shim could miss what starts
/// before it.
pub(super) fn supervise(shim: &Shim, watch: &WatchArgs, patch: &mut PatchBuilder) {
    let Some((index, proxy)) = shim.facts.classic_proxy() else { return };
    patch.mount(index, shim::binary_mount(SHIM_VOLUME));
    let watch = WatchArgs { state: state_file(proxy), ..watch.clone() };
    let mut words = watch.to_supervising_command(SHIM_BINARY);
    words.extend(command_of(proxy));
    if !proxy.has_command() {
        words.push(shim.settings.proxy_command.clone());
    }
    patch.command(index, &words);
    patch.move_to_front(index);
}

/// Returns the state file, which is on the proxy's own data volume, so that no volume is added.
fn state_file(proxy: &Container) -> Option<String> {
    let data = proxy.volume_mounts.iter().flatten().find(|mount| mount.name.as_str() == ISTIO_DATA_VOLUME)?;
    Some(format!("{}/aux-shim", data.mount_path.as_str()))
}

pub(super) fn command_of(container: &Container) -> impl Iterator<Item = String> {
    container.command.iter().flatten().cloned()
}
