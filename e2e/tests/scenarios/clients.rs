//! What the scenarios with clients of Kubernetes share.

use std::env::var;
use std::process::Output;
use std::time::Duration;

use e2e::command::{in_background, on_cluster};
use e2e::manifests::{container, job, pod_spec};
use e2e::{Namespace, PodView};
use serde_json::{Value, json};

/// Runs one of `clients/run` with more variables, for pods in this namespace.
pub(crate) async fn run(ns: &Namespace, client: &'static str, variables: Vec<(&'static str, String)>) -> Output {
    let namespace = ns.name().to_owned();
    in_background(move || {
        let mut command = on_cluster(concat!(env!("CARGO_MANIFEST_DIR"), "/clients/run"), &[client]);
        command.env("NAMESPACE", namespace).envs(variables).output().expect("it can be run")
    })
    .await
}

/// Returns a Job of one container that runs Python in the image of clients.
pub(crate) fn python_job(name: &str, words: &[&str]) -> Value {
    let image = var("CLIENTS_IMAGE").expect("the image of Dask and Ray is named by CLIENTS_IMAGE");
    let mut main = container("main", &[&["python3"], words].concat());
    main["image"] = json!(image);
    job(name, &pod_spec("Never", &[main]))
}

/// Waits for the payload's end, and sees the pod run on.
pub(crate) async fn assert_runs_on_without(ns: &Namespace, pod: &str, payload: &str) {
    ns.pod_until(pod, "the payload's end", |pod| PodView(pod).exit_code(payload)).await;
    ns.holds_for(Duration::from_secs(20), "payload ended, pod not", async || {
        PodView(&ns.pod(pod).await).phase() == "Running"
    })
    .await;
}
