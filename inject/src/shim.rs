//! The shim in a pod: its containers, which meet Pod Security *restricted*, its volumes and mounts. What is added in a
//! reinvocation has missed the API server's own defaulting plug-ins, so all that matters is spelled out.

use contract::args::{INSTALL, Watch};
use contract::names::{
    BINARY_FOLDER, INSTALL_CONTAINER, LOCKS_FOLDER, LOCKS_VOLUME, SHIM_CONTAINER, SHIM_UID, STATE_FOLDER, VOLUME,
};
use serde_json::{Value, json};

use super::mode::Delivery;
use super::pod::Pod;
use super::{Settings, resources};

/// The shim's own container, for the end of `initContainers`.
pub(super) fn native_sidecar(watch: &Watch, pod: &Pod, settings: &Settings) -> Value {
    let mut container = container(SHIM_CONTAINER, &watch.to_args(), STATE_FOLDER, pod, settings);
    container["restartPolicy"] = json!("Always");
    container
}

/// The init container that copies the binary to where [`binary_mount`] shows it.
pub(super) fn installer(pod: &Pod, settings: &Settings) -> Value {
    let args = [INSTALL.to_owned(), BINARY_FOLDER.to_owned()];
    container(INSTALL_CONTAINER, &args, BINARY_FOLDER, pod, settings)
}

fn container(name: &str, args: &[String], mount_path: &str, pod: &Pod, settings: &Settings) -> Value {
    let mut container = json!({
        "name": name,
        "image": settings.shim_image,
        "imagePullPolicy": settings.pull_policy.as_str(),
        "args": args,
        "volumeMounts": [{"name": VOLUME, "mountPath": mount_path}],
        "securityContext": {
            "runAsUser": SHIM_UID,
            "runAsGroup": SHIM_UID,
            "runAsNonRoot": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    });
    if let Some(resources) = resources::for_shim(pod, &settings.resources) {
        container["resources"] = resources;
    }
    container
}

/// The volume of the shim's memory. On disk: a memory-backed one is empty after a reboot, and a shim without its memory
/// would wait for a container that has succeeded before it.
pub(super) fn state_volume() -> Value {
    json!({"name": VOLUME, "emptyDir": {"sizeLimit": "1Mi"}})
}

/// The volume of the shim's binary.
pub(super) fn binary_volume(settings: &Settings) -> Value {
    match settings.delivery {
        Delivery::Copy => json!({"name": VOLUME, "emptyDir": {"sizeLimit": "2Mi"}}),
        Delivery::ImageVolume => {
            let image = json!({"reference": settings.shim_image, "pullPolicy": settings.pull_policy.as_str()});
            json!({"name": VOLUME, "image": image})
        }
    }
}

/// Where a container finds the binary.
pub(super) fn binary_mount() -> Value {
    json!({"name": VOLUME, "mountPath": BINARY_FOLDER, "readOnly": true})
}

/// The volume in which wrapped containers say how they are; on disk, as the memory is.
pub(super) fn locks_volume() -> Value {
    json!({"name": LOCKS_VOLUME, "emptyDir": {"sizeLimit": "1Mi"}})
}

/// Where a container says it.
pub(super) fn locks_mount() -> Value {
    json!({"name": LOCKS_VOLUME, "mountPath": LOCKS_FOLDER})
}

/// The file of the shim's memory, in its own container.
pub(super) fn state_file() -> String {
    format!("{STATE_FOLDER}/seen")
}
