//! A projected token with the audience `pipelines.kubeflow.org`, which Kubeflow Pipelines accepts and other servers reject. Its
//! rights are those of the pod's service account.

use contract::names::{
    ACCESS_PIPELINES_LABEL, ACCOUNT_TOKEN_DIR, INSTALL_CONTAINER, NOTEBOOK_LABEL, PIPELINES_AUDIENCE,
    PIPELINES_TOKEN_DIR, PIPELINES_TOKEN_ENV, PIPELINES_TOKEN_FILE, PIPELINES_TOKEN_SECONDS, PIPELINES_TOKEN_VOLUME,
    PROXY_CONTAINER, SHIM_CONTAINER,
};
use json_patch::Patch;
use serde_json::{Value, json};

use crate::Decision;
use crate::facts::pod::{Container, Pod};
use crate::patch::PatchBuilder;

/// Containers that are not payload.
const NOT_PAYLOAD: [&str; 3] = [PROXY_CONTAINER, SHIM_CONTAINER, INSTALL_CONTAINER];

/// Gives each payload container of a pod that runs to completion, or of a notebook, the token for Kubeflow Pipelines.
/// Deciding again on the patched pod changes nothing.
#[must_use]
pub fn add_pipelines_token(pod: &Pod) -> Decision {
    if pod.label(ACCESS_PIPELINES_LABEL).is_some() {
        return Decision::without_shim(Patch::default(), "left to the PodDefault access-ml-pipeline");
    }
    if pod.spec.restart_policy().is_none() && pod.label(NOTEBOOK_LABEL).is_none() {
        return Decision::without_shim(Patch::default(), "the pod does not run to completion, and is not a notebook");
    }
    if let Some(reason) = pod.excess() {
        return Decision::without_shim(Patch::default(), reason);
    }
    let mut patch = PatchBuilder::new(pod);
    let mut gets_token = false;
    for (index, _) in pod.spec.containers.iter().enumerate().filter(|(_, container)| wants_token(container)) {
        gets_token = true;
        patch.mount(index, mount(PIPELINES_TOKEN_VOLUME));
        patch.env(index, variable());
    }
    if !gets_token {
        return Decision::without_shim(Patch::default(), "each container has the token already, or wants none");
    }
    patch.volume(volume(PIPELINES_TOKEN_VOLUME));
    Decision::without_shim(patch.finish(), "the pod gets the token for Kubeflow Pipelines")
}

/// Returns true for a payload container without a token, and without a setting of its own for one. The API server has given it a token
/// of its service account before it calls webhooks, unless pod or account say otherwise.
fn wants_token(container: &Container) -> bool {
    container.mounts_at(ACCOUNT_TOKEN_DIR)
        && !NOT_PAYLOAD.iter().any(|name| container.is_named(name))
        && !container.mounts_at(PIPELINES_TOKEN_DIR)
        && container.variable(PIPELINES_TOKEN_ENV).is_none()
}

/// Returns the volume of the token, by this name.
pub(super) fn volume(name: &str) -> Value {
    let token = json!({
        "path": PIPELINES_TOKEN_FILE, "expirationSeconds": PIPELINES_TOKEN_SECONDS, "audience": PIPELINES_AUDIENCE,
    });
    json!({"name": name, "projected": {"sources": [{"serviceAccountToken": token}]}})
}

/// Returns the mount of the volume of this name.
pub(super) fn mount(volume: &str) -> Value {
    json!({"name": volume, "mountPath": PIPELINES_TOKEN_DIR, "readOnly": true})
}

/// Returns the environment variable that has the token's path.
pub(super) fn variable() -> Value {
    json!({"name": PIPELINES_TOKEN_ENV, "value": format!("{PIPELINES_TOKEN_DIR}/{PIPELINES_TOKEN_FILE}")})
}
