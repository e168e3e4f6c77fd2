//! Mode wrap: the shim is the parent of each awaited container's command, and of pilot-agent, which reads their locks.

use std::collections::HashSet;

use contract::args::{WRAP, WatchArgs, WrapArgs};
use contract::names::{LOCK_DIR, SHIM_BINARY, SHIM_VOLUME};

use super::PatchBuilder;
use super::proxy::{command_of, deliver, supervise};
use super::shim::{self, Shim};

pub(super) fn add(shim: &Shim, watch: &WatchArgs, patch: &mut PatchBuilder) {
    deliver(shim, SHIM_VOLUME, patch);
    patch.volume(shim::lock_volume());
    let awaited: HashSet<&str> = watch.awaited.iter().map(String::as_str).collect();
    for (index, container) in shim.facts.pod.spec.containers.iter().enumerate() {
        let name = container.name.as_str();
        if !awaited.contains(name) {
            continue;
        }
        patch.mount(index, shim::binary_mount(SHIM_VOLUME));
        patch.mount(index, shim::lock_mount(name));
        if !container.is_run_by_shim(WRAP) {
            let mut words = WrapArgs { lock_dir: LOCK_DIR.to_owned() }.to_command(SHIM_BINARY);
            words.extend(command_of(container));
            patch.command(index, &words);
        }
    }
    if let Some((index, _)) = shim.facts.classic_proxy() {
        patch.mount(index, shim::all_locks_mount());
    }
    supervise(shim, &WatchArgs { lock_dir: Some(LOCK_DIR.to_owned()), ..watch.clone() }, patch);
}
