//! Other options of the installed webhook for a while, such as delivery by image volume, which Kubernetes has from 1.35 on.

use contract::names::SHIM_VOLUME;
use serde_json::{Value, json};

use crate::harness::undo;
use crate::kubectl::kubectl;
use crate::outage::{NAMESPACE, NoReplica};

const DEPLOYMENT: &str = "deployment/istio-aux";
/// Has the shim's image mounted.
pub const IMAGE_VOLUME: &str = "--delivery=image-volume";

/// Options of the webhook, until it is dropped.
pub struct WebhookOption {
    earlier: Vec<String>,
}

impl WebhookOption {
    /// Sets options, each `--NAME=VALUE`, in place of other values, and waits until every replica runs so.
    #[must_use]
    pub fn set(options: &[&str]) -> Self {
        let earlier = arguments();
        let names: Vec<&str> = options.iter().filter_map(|option| option.split_inclusive('=').next()).collect();
        let is_other = |argument: &&str| !names.iter().any(|name| argument.starts_with(name));
        let others = earlier.iter().map(String::as_str).filter(is_other);
        let arguments: Vec<&str> = others.chain(options.iter().copied()).collect();
        let this = Self { earlier: earlier.clone() };
        set_arguments(&arguments);
        this
    }
}

impl Drop for WebhookOption {
    fn drop(&mut self) {
        undo(|| set_arguments(&self.earlier.iter().map(String::as_str).collect::<Vec<_>>()));
    }
}

/// Returns true if a pod has the shim's image as a volume.
pub fn is_mounted(pod: &Value) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    volumes.is_some_and(|all| all.iter().any(|volume| volume["name"] == SHIM_VOLUME && volume["image"].is_object()))
}

fn arguments() -> Vec<String> {
    let path = "--output=jsonpath={.spec.template.spec.containers[0].args}";
    serde_json::from_str(&kubectl(&[NAMESPACE, "get", DEPLOYMENT, path])).expect("they are a list")
}

/// Replaces all replicas at once: in a rollout, those that drain would still answer with the earlier options.
fn set_arguments(arguments: &[&str]) {
    let away = NoReplica::of_webhook();
    let patch = json!([{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments}]);
    kubectl(&[NAMESPACE, "patch", DEPLOYMENT, "--type=json", "--patch", &patch.to_string()]);
    drop(away);
}
