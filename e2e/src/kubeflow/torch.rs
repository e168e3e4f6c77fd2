//! A `PyTorchJob` of the training operator: a master and two workers of Python that train together.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::manifests::python;
use crate::{Namespace, PodView};

/// Returns the label of a job's pods.
pub fn label_of(job: &str) -> String {
    format!("training.kubeflow.org/job-name={job}")
}

/// Returns the job, which is named `train`.
pub fn py_torch_job() -> Value {
    let trainer = python("pytorch", &["python3", "-c", include_str!("../../stand-ins/train.py")]);
    let replicas = |count: u32| {
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [trainer.clone()]});
        json!({"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}})
    };
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(2)}},
    })
}

/// Waits until the job has succeeded with all its pods, and asserts that each has trained with the others. Returns the pods.
pub async fn pods_of_training(ns: &Namespace) -> Vec<Pod> {
    ns.until_condition(&py_torch_job(), &["Succeeded"]).await;
    let pods = ns
        .until("all pods of the training to succeed", async || {
            let pods = ns.pods_with(&label_of("train")).await;
            (pods.len() == 3 && pods.iter().all(|pod| PodView(pod).phase() == "Succeeded")).then_some(pods)
        })
        .await;
    for pod in &pods {
        let log = ns.logs(pod.metadata.name.as_deref().unwrap_or_default(), "pytorch").await;
        assert!(log.contains("of 3: slope=3.0"), "{log}");
    }
    pods
}
