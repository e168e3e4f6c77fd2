//! The ways in which the shim gets into a pod, one for each mode that has one.

use contract::args::{WRAP, Watch, Wrap};
use contract::names::{ISTIO_DATA_VOLUME, LOCKS_FOLDER, SHIM_BINARY};

use super::mode::Delivery;
use super::patch::PatchWriter;
use super::pod::{Container, Pod, Text};
use super::{Settings, shim};

/// Makes a classic proxy hold the start of the payload, as Istio's injector would have: where it rendered the proxy before
/// it could be told (kube-inject, or an injector that is called first).
pub(super) fn hold(pod: &Pod, write: &mut PatchWriter) {
    let Some(index) = pod.classic_proxy() else { return };
    let proxy = &pod.spec.containers[index];
    let has_hook = proxy.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some());
    // A command of its own may be no pilot-agent.
    if !has_hook && proxy.command.is_none() {
        write.post_start(index, &["pilot-agent", "wait"]);
        write.first(index);
    }
}

/// A container of its own, which sees the others in a shared PID namespace.
pub(super) fn native(pod: &Pod, watch: Watch, settings: &Settings, write: &mut PatchWriter) {
    let watch = Watch { state: Some(shim::state_file()), ..watch };
    write.init_container(&shim::native_sidecar(&watch, pod, settings));
    write.volume(&shim::state_volume());
    write.share_process_namespace();
}

/// The parent of pilot-agent, which sees the others in a shared PID namespace.
pub(super) fn proxy(pod: &Pod, watch: Watch, settings: &Settings, write: &mut PatchWriter) {
    deliver(pod, settings, write);
    write.share_process_namespace();
    supervise(pod, watch, settings, write);
}

/// The parent of each awaited container's command, and of pilot-agent, which sees the others' locks.
pub(super) fn wrap(pod: &Pod, watch: Watch, settings: &Settings, write: &mut PatchWriter) {
    deliver(pod, settings, write);
    write.volume(&shim::locks_volume());
    for (index, container) in pod.spec.containers.iter().enumerate() {
        let name = container.name.as_str();
        if !watch.awaited.iter().any(|awaited| awaited == name) {
            continue;
        }
        write.mount(index, &shim::binary_mount());
        write.mount(index, &shim::locks_mount());
        if !container.is_run_by_shim(WRAP) {
            let wrap = Wrap { name: name.to_owned(), locks: LOCKS_FOLDER.to_owned() };
            let mut words = wrap.to_command(SHIM_BINARY);
            words.extend(command_of(container));
            write.command(index, &words);
        }
    }
    supervise(pod, Watch { locks: Some(LOCKS_FOLDER.to_owned()), ..watch }, settings, write);
}

/// Brings the binary to the containers that mount it.
fn deliver(pod: &Pod, settings: &Settings, write: &mut PatchWriter) {
    write.volume(&shim::binary_volume(settings));
    if settings.delivery == Delivery::Copy {
        write.init_container(&shim::installer(pod, settings));
    }
}

/// Makes the shim the parent of the proxy's command. The proxy comes first: whatever starts before the shim it could miss.
fn supervise(pod: &Pod, watch: Watch, settings: &Settings, write: &mut PatchWriter) {
    let Some(index) = pod.classic_proxy() else { return };
    let proxy = &pod.spec.containers[index];
    if watch.locks.is_some() {
        write.mount(index, &shim::locks_mount());
    }
    write.mount(index, &shim::binary_mount());
    let mut words = Watch { state: state_file(proxy), ..watch }.to_supervising_command(SHIM_BINARY);
    words.extend(command_of(proxy));
    if proxy.command.as_ref().is_none_or(Vec::is_empty) {
        words.push(settings.proxy_command.clone());
    }
    write.command(index, &words);
    write.first(index);
}

/// The shim's memory, where the proxy can write to disk: the pod needs no volume for it.
fn state_file(proxy: &Container) -> Option<String> {
    let mounts = proxy.volume_mounts.iter().flatten();
    let data = mounts.filter(|mount| mount.name.as_str() == ISTIO_DATA_VOLUME).map(|mount| mount.mount_path.as_str());
    data.map(|path| format!("{path}/aux-shim")).next()
}

fn command_of<'c>(container: &'c Container) -> impl Iterator<Item = String> + 'c {
    container.command.iter().flatten().map(Text::as_str).map(str::to_owned)
}
