//! The shim by `ConfigMap`: switches it on for a while, beside whatever is installed.

use contract::names::SHIM_DELIVERY_LABEL;
use serde_json::{Value, json};

use crate::Namespace;
use crate::command::{printed, run};
use crate::manifests::{pod, pod_spec, shell};
use crate::tenancy::{apply, install_controller, kubectl, objects_of_component, wait_for_rollout};

/// What all `ConfigMaps` of the shim have.
pub const MANAGED: &str = "app.kubernetes.io/managed-by=istio-aux-tenancy";
/// The names of the admission policies, and of their bindings.
pub const POLICIES: [&str; 2] = ["istio-aux-shim-config-maps", "istio-aux-shim-delivery"];
/// Where the webhook's Deployment has its delivery.
const DELIVERY_ARGUMENT: &str = "/spec/template/spec/containers/0/args/2";

/// Delivery by `ConfigMap`, until it is dropped.
#[derive(Debug)]
pub struct Delivery(());

impl Delivery {
    /// Switches it on, and waits until controller and webhook run so.
    #[must_use]
    pub fn on() -> Self {
        // What follows may fail half-way; what was done by then is undone when this is dropped.
        let delivery = Self(());
        apply(&policies());
        delivery.switched_on()
    }

    /// The same without its admission policies.
    #[must_use]
    pub fn on_without_policies() -> Self {
        Self(()).switched_on()
    }

    fn switched_on(self) -> Self {
        install_controller("tenancy-and-config-map-delivery");
        set_delivery("--delivery=config-map");
        self
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // Nothing is left that another scenario's pods could mount.
        set_delivery("--delivery=copy");
        install_controller("tenancy");
        let unlabel = format!("{SHIM_DELIVERY_LABEL}-");
        kubectl(&["label", "namespace", "-l", SHIM_DELIVERY_LABEL, &unlabel]);
        kubectl(&["delete", "configmap", "-A", "-l", MANAGED]);
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            kubectl(&["delete", kind, POLICIES[0], POLICIES[1], "--ignore-not-found"]);
        }
    }
}

/// The admission policies and their bindings.
#[must_use]
pub fn policies() -> Vec<Value> {
    objects_of_component("config-map-delivery", |name| POLICIES.iter().any(|policy| name.ends_with(policy)))
}

fn set_delivery(argument: &str) {
    let patch = json!([{"op": "replace", "path": DELIVERY_ARGUMENT, "value": argument}]).to_string();
    kubectl(&["-n", "istio-aux", "patch", "deployment", "istio-aux", "--type=json", "-p", &patch]);
    wait_for_rollout("istio-aux");
}

/// Runs a Deployment of istio-aux with another image, and waits until it does.
pub fn set_image(deployment: &str, container: &str, image: &str) {
    let deployment_name = format!("deployment/{deployment}");
    kubectl(&["-n", "istio-aux", "set", "image", &deployment_name, &format!("{container}={image}")]);
    wait_for_rollout(deployment);
}

/// The label's value; `None` where the namespace does not have it.
#[must_use]
pub fn delivery_of(ns: &Namespace) -> Option<String> {
    let path = format!("--output=jsonpath={{.metadata.labels.{}}}", SHIM_DELIVERY_LABEL.replace('.', "\\."));
    Some(kubectl(&["get", "namespace", ns.name(), &path])).filter(|value| !value.is_empty())
}

/// Waits until new pods of a namespace mount the shim, and returns the `ConfigMap`'s name: the API server's webhooks see a
/// namespace's label a moment after it is there. Pods must be in the mesh.
pub async fn until_delivered(ns: &Namespace) -> String {
    let like = pod("delivered", &pod_spec("Never", &[shell("main", "true")]));
    ns.until("the delivery", async || {
        let made = serde_json::to_value(ns.dry_run(like.clone()).await).expect("a pod is JSON");
        mounted(&made).map(str::to_owned)
    })
    .await
}

/// The names of the shim's `ConfigMaps` of a namespace.
pub async fn config_maps(ns: &Namespace) -> Vec<String> {
    let kind = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}});
    let found = ns.list(&kind, MANAGED).await;
    found.iter().filter_map(|one| Some(one["metadata"]["name"].as_str()?.to_owned())).collect()
}

/// The `ConfigMap` that a pod mounts as the shim's binary.
#[must_use]
pub fn mounted(pod: &Value) -> Option<&str> {
    let volumes = pod["spec"]["volumes"].as_array()?;
    let volume = volumes.iter().find(|volume| volume["name"] == contract::names::SHIM_VOLUME)?;
    volume["configMap"]["name"].as_str()
}

/// Makes an image of the webhook's binary with another binary of the shim, one byte longer, and loads it into the one-node
/// cluster.
pub fn load_image_with_another_shim(image: &str) {
    let script = format!(
        "set -e; cd ..; root=target/other-shim; rm -rf $root; mkdir -p $root; \
         cp target/images/istio-aux target/images/aux-shim $root/; printf '\\n' >>$root/aux-shim; \
         python3 deploy/images/oci_archive.py $root {image} target/other-shim.tar --architecture $(uname -m | sed 's/x86_64/amd64/;s/aarch64/arm64/') \
         --entrypoint=/istio-aux --user=65018:65018; hack/cluster/cluster load target/other-shim.tar"
    );
    drop(printed(&run("bash", &["-c", &script], "")));
}
