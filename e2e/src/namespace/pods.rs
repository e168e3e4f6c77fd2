//! The pods of a scenario's namespace.

use std::process::Output;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, LogParams};
use serde_json::Value;

use super::Namespace;
use super::objects::name_of;
use crate::command::{printed, run};

impl Namespace {
    /// Returns the client of the namespace's pods.
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

    /// Runs a pod to its end, asserts that this is its final phase, and returns it.
    pub async fn run(&self, pod: Value, phase: &str) -> Pod {
        let name = name_of(&pod).to_owned();
        self.create_object(pod).await;
        self.until_ended(&name, phase).await
    }

    /// Runs a command in a container of a pod, and returns what it printed.
    pub fn exec(&self, pod: &str, container: &str, command: &[&str]) -> String {
        printed(&self.try_exec(pod, container, command))
    }

    /// Runs a script in the container `main` of a pod, or of `deployment/NAME`, and returns what it printed.
    pub fn run_script(&self, pod: &str, script: &str) -> String {
        self.exec(pod, "main", &["sh", "-c", script])
    }

    /// Runs a command in a container of a pod, or of `deployment/NAME`, which may fail.
    #[must_use]
    pub fn try_exec(&self, pod: &str, container: &str, command: &[&str]) -> Output {
        let exec = ["-n", self.name(), "exec", pod, "--container", container, "--"];
        run("kubectl", &[&exec[..], command].concat(), "")
    }

    /// Deletes a pod.
    pub async fn delete_pod(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.expect("the pod is deleted");
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
