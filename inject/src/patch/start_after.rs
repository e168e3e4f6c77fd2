//! A Katib training that starts after its metrics collector: the shim runs first, and becomes the training's command.

use contract::args::StartAfterArgs;
use contract::names::{BINARY_VOLUME, KATIB_COLLECTOR_OPTION, SHIM_BINARY, SHIM_VOLUME};

use super::PatchBuilder;
use super::proxy::{command_of, deliver};
use super::shim::{self, Shim};
use crate::Mode;

pub(super) fn add(shim: &Shim, index: usize, mode: Mode, patch: &mut PatchBuilder) {
    // In mode native the volume of that name holds the shim's state.
    let volume = if mode == Mode::Proxy { SHIM_VOLUME } else { BINARY_VOLUME };
    if mode != Mode::Proxy {
        deliver(shim, volume, patch);
    }
    patch.mount(index, shim::binary_mount(volume));
    let mut words = StartAfterArgs { argument: KATIB_COLLECTOR_OPTION.to_owned() }.to_command(SHIM_BINARY);
    words.extend(command_of(&shim.facts.pod.spec.containers[index]));
    patch.command(index, &words);
}
