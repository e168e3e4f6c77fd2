//! Switches the installed webhook to delivery by image volume, which Kubernetes has from 1.35 on.

use contract::names::SHIM_VOLUME;
use serde_json::{Value, json};

use crate::Namespace;
use crate::command::{printed, run};
use crate::manifests::{pod, pod_spec, shell};

const DEPLOYMENT: &str = "deployment/istio-aux";
const OPTION: &str = "--delivery=";

/// Delivery by image volume, until it is dropped.
pub struct ImageVolumes {
    earlier: String,
}

impl ImageVolumes {
    /// Switches it on, and waits until the webhook runs so.
    #[must_use]
    pub fn on() -> Self {
        let arguments = arguments();
        let earlier = arguments.iter().find(|argument| argument.starts_with(OPTION));
        let earlier = earlier.expect("the webhook has the option --delivery").clone();
        set_delivery("--delivery=image-volume");
        Self { earlier }
    }
}

impl Drop for ImageVolumes {
    fn drop(&mut self) {
        set_delivery(&self.earlier);
    }
}

/// Waits until new pods of a namespace mount the shim's image: replicas that drain may still answer.
pub async fn until_mounted(ns: &Namespace) {
    let like = pod("mounted", &pod_spec("Never", &[shell("main", "true")]));
    ns.until("a pod that mounts the shim's image", async || {
        let made = serde_json::to_value(ns.dry_run(like.clone()).await).expect("a pod is JSON");
        is_mounted(&made).then_some(())
    })
    .await;
}

/// Returns true if a pod has the shim's image as a volume.
#[must_use]
pub fn is_mounted(pod: &Value) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    volumes.is_some_and(|all| all.iter().any(|volume| volume["name"] == SHIM_VOLUME && volume["image"].is_object()))
}

fn arguments() -> Vec<String> {
    let path = "--output=jsonpath={.spec.template.spec.containers[0].args}";
    let text = printed(&run("kubectl", &["-n", "istio-aux", "get", DEPLOYMENT, path], ""));
    serde_json::from_str(&text).expect("they are a list")
}

fn set_delivery(argument: &str) {
    let index = arguments().iter().position(|argument| argument.starts_with(OPTION));
    let place = format!("/spec/template/spec/containers/0/args/{}", index.expect("the option is there"));
    let patch = json!([{"op": "replace", "path": place, "value": argument}]).to_string();
    let kubectl = |words: &[&str]| drop(printed(&run("kubectl", &[&["-n", "istio-aux"], words].concat(), "")));
    kubectl(&["patch", DEPLOYMENT, "--type=json", "-p", &patch]);
    kubectl(&["rollout", "status", DEPLOYMENT, "--timeout=120s"]);
}
