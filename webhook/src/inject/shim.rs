//! The shim as a container: a native sidecar that meets Pod Security *restricted*, and the volume of its memory.

use contract::args::Watch;
use contract::names::{SHIM_CONTAINER, SHIM_UID, STATE_FOLDER, VOLUME};
use serde_json::{Value, json};

/// The container, for the end of `initContainers`. What is added in a reinvocation has missed the API server's own
/// defaulting plug-ins, so all that matters is spelled out.
pub(super) fn native_sidecar(watch: &Watch, image: &str) -> Value {
    json!({
        "name": SHIM_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "args": watch.to_args(),
        // CRI-O refuses memory limits under 12 MiB.
        "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}, "limits": {"memory": "16Mi"}},
        "volumeMounts": [{"name": VOLUME, "mountPath": STATE_FOLDER}],
        "securityContext": {
            "runAsUser": SHIM_UID,
            "runAsGroup": SHIM_UID,
            "runAsNonRoot": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}

/// On disk: a memory-backed one is empty after a reboot, and a shim without its memory would wait for a container that
/// has succeeded before it.
pub(super) fn volume() -> Value {
    json!({"name": VOLUME, "emptyDir": {"sizeLimit": "1Mi"}})
}

/// The file of the shim's memory.
pub(super) fn state_file() -> String {
    format!("{STATE_FOLDER}/seen")
}
