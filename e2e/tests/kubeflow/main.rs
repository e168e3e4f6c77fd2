//! Kubeflow's own components on the cluster of `KUBECONFIG`: what they make completes with istio-aux, and hangs without.
//! `make test-kubeflow` adds the components to the one-node cluster. `control_` marks the tests that show the failure.

mod argo;
mod jobs;
mod jobset;
mod siblings;
mod training;

use e2e::{Namespace, PodView};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// The same specification with a file `/gate/open` in its first container, for pods that are created after [`open_gate`]:
/// a payload that fails without it fails until then.
fn behind_gate(mut spec: Value) -> Value {
    spec["volumes"] = json!([{"name": "gate", "configMap": {"name": "gate", "optional": true}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "gate", "mountPath": "/gate"}]);
    spec
}

async fn open_gate(ns: &Namespace) {
    let gate = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gate"}, "data": {"open": "yes"}});
    ns.create_object(gate).await;
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Waits until one of the pods with a label is as described.
async fn until_a_pod(ns: &Namespace, label: &str, what: &str, is_so: impl Fn(PodView) -> bool) {
    ns.until(&format!("{what} of a pod with {label}"), async || {
        ns.pods_with(label).await.iter().any(|pod| is_so(PodView(pod))).then_some(())
    })
    .await;
}

/// Whether one of the pods is as described.
fn any(pods: &[Pod], is_so: impl Fn(PodView) -> bool) -> bool {
    pods.iter().any(|pod| is_so(PodView(pod)))
}
