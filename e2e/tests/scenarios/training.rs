//! The case the idea began with: a TFJob of the training operator.

use std::time::Duration;

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::tf_job;
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::Value;

const WORKERS: usize = 2;
const PODS: &str = "training.kubeflow.org/job-name=train";

fn train() -> Value {
    tf_job("train", 2, "OnFailure", "echo training; sleep 3; echo trained")
}

fn succeeded(tf_job: &Value) -> bool {
    has_condition(tf_job, "Succeeded")
}

async fn workers_in(ns: &Namespace, is_so: impl Fn(PodView) -> bool) -> bool {
    let pods = ns.pods_with(PODS).await;
    pods.len() == WORKERS && pods.iter().all(|pod| is_so(PodView(pod)))
}

#[tokio::test]
async fn control_tf_job_in_the_mesh_alone_stays_not_ready() {
    scenario("control-tfjob", &[MESH], async |ns: &Namespace| {
        ns.create_object(train()).await;
        let stuck = |pod: PodView| pod.is_stuck("tensorflow");
        ns.until("both workers to be stuck", || async { workers_in(ns, stuck).await.then_some(()) }).await;
        ns.holds_for(Duration::from_secs(20), "both workers stuck, TFJob not succeeded", async || {
            workers_in(ns, stuck).await && !succeeded(&ns.get(&train()).await)
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn tf_job_succeeds() {
    scenario("tfjob", &[MESH, OPT_IN], async |ns: &Namespace| {
        ns.create_object(train()).await;
        ns.until("TFJob train to succeed", || async { succeeded(&ns.get(&train()).await).then_some(()) }).await;
        let completed = |pod: PodView| pod.phase() == "Succeeded" && pod.exit_code("tensorflow") == Some(0);
        ns.until("both workers to be Completed", || async { workers_in(ns, completed).await.then_some(()) }).await;
    })
    .await;
}
