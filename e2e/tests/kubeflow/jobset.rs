//! Job sets, and the training jobs of Kubeflow Trainer v2, which are made of them.

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{payload_image, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{any, behind_gate, hangs_without, open_gate};

const PODS: &str = "jobset.sigs.k8s.io/jobset-name=set";

fn replicated(name: &str, pods: u32, backoff_limit: u32, script: &str) -> Value {
    let spec = behind_gate(pod_spec("Never", &[shell("main", script)]));
    json!({"name": name, "template": {"spec": {
        "parallelism": pods, "completions": pods, "backoffLimit": backoff_limit, "template": {"spec": spec},
    }}})
}

fn job_set(fields: Value, jobs: &[Value]) -> Value {
    let mut spec = fields;
    spec["replicatedJobs"] = json!(jobs);
    json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "set"}, "spec": spec})
}

/// Returns a driver that reaches its worker by name, and a worker that serves for as long as it is left to.
fn driver_and_worker() -> Value {
    let driver = replicated("driver", 1, 0, "until curl -sSf http://set-worker-0-0.set:8080/; do sleep 0.5; done");
    let worker = replicated("worker", 1, 0, "exec httpd -f -p 8080 -h /www");
    job_set(json!({"successPolicy": {"operator": "All", "targetReplicatedJobs": ["driver"]}}), &[driver, worker])
}

pub(crate) async fn control_job_set_in_the_mesh_alone_does_not_complete() {
    let ns = &scenario("control-jobset", &[MESH]).await;
    let set = job_set(json!({}), &[replicated("main", 2, 0, "sleep 1")]);
    ns.create_object(set.clone()).await;
    hangs_without(ns, &set, "Completed", PODS, "main").await;
}

pub(crate) async fn job_set_completes_with_its_driver() {
    let ns = &scenario("jobset", &[MESH, OPT_IN]).await;
    let set = driver_and_worker();
    ns.create_object(set.clone()).await;
    ns.until_condition(&set, &["Completed"]).await;
    ns.until("the worker to go", async || (!any(&ns.pods_with(PODS).await, |pod| pod.runs("main"))).then_some(()))
        .await;
}

pub(crate) async fn job_set_is_restarted_after_a_failure() {
    let ns = &scenario("jobset-restart", &[MESH, OPT_IN]).await;
    let set = job_set(json!({"failurePolicy": {"maxRestarts": 1}}), &[replicated("main", 1, 0, "test -e /gate/open")]);
    ns.create_object(set.clone()).await;
    // The restart deletes the first pod, so the gate is opened as soon as the payload has failed.
    ns.until_a_pod(PODS, "the failure", |pod| pod.exit_code("main") == Some(1)).await;
    open_gate(ns).await;
    ns.until_condition(&set, &["Completed"]).await;
    assert_eq!(ns.get(&set).await["status"]["restarts"], 1);
}

fn training_runtime() -> Value {
    let spec = pod_spec("Never", &[shell("node", "true")]);
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "plain"},
        "spec": {
            "mlPolicy": {"numNodes": 2, "torch": {"numProcPerNode": "auto"}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                "spec": {"template": {"spec": spec}},
            }}]}},
        },
    })
}

fn train_job() -> Value {
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "set"},
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "plain"},
            "trainer": {
                "image": payload_image(), "numNodes": 2,
                "command": ["sh", "-c", "echo rank $PET_NODE_RANK of $PET_NNODES; sleep 3"],
            },
        },
    })
}

async fn start_train_job(ns: &Namespace) {
    ns.create_object(training_runtime()).await;
    // The trainer's webhook looks for the runtime in what it watches.
    ns.until("the trainer to know the runtime", async || ns.try_create(train_job()).await.ok()).await;
}

pub(crate) async fn control_train_job_in_the_mesh_alone_does_not_complete() {
    let ns = &scenario("control-trainjob", &[MESH]).await;
    start_train_job(ns).await;
    hangs_without(ns, &train_job(), "Complete", PODS, "node").await;
}

pub(crate) async fn train_job_completes() {
    let ns = &scenario("trainjob", &[MESH, OPT_IN]).await;
    start_train_job(ns).await;
    ns.until_condition(&train_job(), &["Complete"]).await;
    let pods = ns.pods_with(PODS).await;
    assert_eq!(pods.len(), 2);
    assert!(pods.iter().all(|pod| PodView(pod).phase() == "Succeeded"));
}
