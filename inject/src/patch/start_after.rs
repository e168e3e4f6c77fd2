//! A Katib training that starts after its metrics collector: the shim runs first, and becomes the training's command.

use contract::args::StartAfterArgs;
use contract::names::{KATIB_COLLECTOR_OPTION, SHIM_BINARY};

use super::PatchBuilder;
use super::proxy::{command_of, deliver};
use super::shim::{self, Shim};

pub(super) fn add(shim: &Shim, index: usize, patch: &mut PatchBuilder) {
    deliver(shim, patch);
    patch.mount(index, shim::binary_mount());
    let mut words = StartAfterArgs { argument: KATIB_COLLECTOR_OPTION.to_owned() }.to_command(SHIM_BINARY);
    words.extend(command_of(&shim.facts.pod.spec.containers[index]));
    patch.command(index, &words);
}
