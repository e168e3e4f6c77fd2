//! The pods of a scenario's namespace.

use std::time::{Duration, Instant};

use contract::names::SHIM_CONTAINER;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Namespace;
use super::objects::name_of;
use crate::PodView;

/// A pod whose payload is short takes longer only where its shim has missed the payload's end and waits for it still.
const SLOW: Duration = Duration::from_secs(30);

impl Namespace {
    /// Returns the client of the namespace's pods.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Returns a pod.
    pub async fn pod(&self, name: &str) -> Pod {
        self.pods().get(name).await.expect("the pod is read")
    }

    /// Returns true if there is a pod of this name.
    pub async fn has_pod(&self, name: &str) -> bool {
        self.pods().get_opt(name).await.expect("pods are read").is_some()
    }

    /// Returns the pods with a label, `key=value`.
    pub async fn pods_with(&self, label: &str) -> Vec<Pod> {
        self.pods().list(&ListParams::default().labels(label)).await.expect("the pods are listed").items
    }

    /// Returns the pods in a final phase. The API server selects them, so asking often costs little.
    pub async fn finished_pods(&self) -> Vec<Pod> {
        let parameters = ListParams::default().fields("status.phase!=Pending,status.phase!=Running");
        self.pods().list(&parameters).await.expect("the pods are listed").items
    }

    /// Runs a pod to its end, and deletes it. Returns its final phase and how often its shim was restarted. Describes a pod
    /// that fails or is slow.
    pub async fn run_pod(&self, pod: Value) -> (String, i32) {
        let began = Instant::now();
        let name = name_of(&pod).to_owned();
        self.create_object(pod).await;
        let phase = self.final_phase(&name).await;
        let pod = self.pod(&name).await;
        if phase != "Succeeded" || began.elapsed() >= SLOW {
            eprintln!("{}", self.describe_pod(&pod).await);
        }
        self.delete_pod(&name).await;
        (phase, PodView(&pod).restarts(SHIM_CONTAINER).unwrap_or_default())
    }

    /// Deletes a pod.
    pub async fn delete_pod(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.expect("the pod is deleted");
    }

    /// Adds an ephemeral container to a pod, as `kubectl debug` does.
    pub async fn add_ephemeral_container(&self, pod: &str, container: Value) {
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
        let patched = self.pods().patch_ephemeral_containers(pod, &PatchParams::default(), &patch).await;
        patched.expect("the ephemeral container is added");
    }

    /// Returns the log of a container.
    pub async fn logs(&self, pod: &str, container: &str) -> String {
        self.try_logs(pod, container).await.expect("the log is read")
    }

    /// Returns the log of a container; `None` before it has started.
    pub async fn try_logs(&self, pod: &str, container: &str) -> Option<String> {
        let parameters = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
        self.pods().logs(pod, &parameters).await.ok()
    }
}
