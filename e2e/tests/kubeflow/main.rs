//! Jobs of Kubernetes and of Kubeflow's components: what they make completes with istio-aux, and hangs without. `control_` marks
//! the tests that show the failure. Components that the cluster does not have are listed as not run.

mod argo;
mod beside;
mod jobs;
mod jobset;
mod katib;
mod profiles;
mod siblings;
mod training;

use std::process::ExitCode;

use e2e::{Namespace, PodView};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

fn main() -> ExitCode {
    e2e::harness::run_groups(vec![
        jobs::group(),
        siblings::group(),
        training::group(),
        jobset::group(),
        jobset::group_of_trainer(),
        katib::group(),
        katib::group_with_argo(),
        argo::group(),
        argo::group_of_artifacts(),
        profiles::group(),
        beside::group_of_katib(),
        beside::group_of_argo(),
    ])
}

/// Mounts a file `/gate/open` into the first container of pods that are created after [`open_gate`].
fn behind_gate(mut spec: Value) -> Value {
    spec["volumes"] = json!([{"name": "gate", "configMap": {"name": "gate", "optional": true}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "gate", "mountPath": "/gate"}]);
    spec
}

async fn open_gate(ns: &Namespace) {
    let gate = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gate"}, "data": {"open": "yes"}});
    ns.create_object(gate).await;
}

/// Returns true if one of the pods is as described.
fn any(pods: &[Pod], is_so: impl Fn(PodView) -> bool) -> bool {
    pods.iter().any(|pod| is_so(PodView(pod)))
}
