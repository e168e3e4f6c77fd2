//! Training jobs of Kubeflow's training operator: they succeed, and their pods are cleaned up, restarted and counted as without a
//! mesh.

use std::time::Duration;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN, RESTRICTED};
use e2e::kubectl::kubectl;
use e2e::kubeflow::torch::{label_of, pods_of_training, py_torch_job};
use e2e::manifests::{restricted, shell, strict, tf_job};
use e2e::namespace::name_of;
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::{Value, json};

use crate::{behind_gate, hangs_without, open_gate};

const WORKERS: usize = 2;
fn train() -> Value {
    tf_job("train", 2, "OnFailure", "echo training; sleep 3; echo trained")
}

async fn workers_in(ns: &Namespace, is_so: impl Fn(PodView) -> bool) -> bool {
    let pods = ns.pods_with(&label_of("train")).await;
    pods.len() == WORKERS && pods.iter().all(|pod| is_so(PodView(pod)))
}

pub(crate) async fn control_tf_job_in_the_mesh_alone_stays_not_ready() {
    let ns = &scenario("control-tfjob", &[MESH]).await;
    ns.create_object(train()).await;
    let stuck = |pod: PodView| pod.is_stuck("tensorflow");
    ns.until("both workers to be stuck", || async { workers_in(ns, stuck).await.then_some(()) }).await;
    ns.holds_for(Duration::from_secs(20), "both workers stuck, TFJob not succeeded", async || {
        workers_in(ns, stuck).await && !has_condition(&ns.get(&train()).await, "Succeeded")
    })
    .await;
}

pub(crate) async fn tf_job_succeeds() {
    let ns = &scenario("tfjob", &[MESH, OPT_IN]).await;
    ns.create_object(train()).await;
    ns.until_condition(&train(), &["Succeeded"]).await;
    let completed = |pod: PodView| pod.phase() == "Succeeded" && pod.exit_code("tensorflow") == Some(0);
    ns.until("both workers to be Completed", || async { workers_in(ns, completed).await.then_some(()) }).await;
}

/// Returns a `TFJob` of a worker that ends, and a parameter server that does not.
fn with_parameter_server(policy: &str) -> Value {
    let mut job = tf_job(&policy.to_lowercase(), 1, "Never", "sleep 2");
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("tensorflow", "exec sleep 900")]});
    job["spec"]["tfReplicaSpecs"]["PS"] = json!({"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}});
    job["spec"]["runPolicy"] = json!({"cleanPodPolicy": policy});
    job
}

/// Which pods a policy leaves: how many, and how many of these run.
const LEFT: [(&str, usize, usize); 3] = [("None", 2, 1), ("Running", 1, 0), ("All", 0, 0)];

pub(crate) async fn control_tf_job_in_the_mesh_alone_is_not_cleaned_up() {
    let ns = &scenario("control-clean", &[MESH]).await;
    let job = with_parameter_server("All");
    ns.create_object(job.clone()).await;
    let stuck = |pod: PodView| pod.is_stuck("tensorflow");
    ns.until_a_pod(&label_of("all"), "the worker's end", stuck).await;
    ns.holds_for(Duration::from_secs(15), "worker ended, both pods there, TFJob not succeeded", async || {
        ns.pods_with(&label_of("all")).await.len() == 2 && !has_condition(&ns.get(&job).await, "Succeeded")
    })
    .await;
}

pub(crate) async fn clean_pod_policy_deletes_its_pods() {
    let ns = &scenario("clean", &[MESH, OPT_IN]).await;
    ns.create_objects(LEFT.map(|(policy, ..)| with_parameter_server(policy))).await;
    for (policy, pods, running) in LEFT {
        let job = with_parameter_server(policy);
        ns.until_condition(&job, &["Succeeded"]).await;
        ns.until(&format!("{pods} pods to be left, of which {running} run, by cleanPodPolicy {policy}"), async || {
            let left = ns.pods_with(&label_of(name_of(&job))).await;
            let run = left.iter().filter(|pod| PodView(pod).runs("tensorflow")).count();
            ((left.len(), run) == (pods, running)).then_some(())
        })
        .await;
    }
}

/// Returns a worker that fails with this code until the gate is open.
fn failing_with(code: i32) -> Value {
    let mut job =
        tf_job(&format!("code-{code}"), 1, "ExitCode", &format!("sleep 1; test -e /gate/open || exit {code}"));
    let spec = &mut job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"];
    *spec = behind_gate(spec.take());
    job
}

pub(crate) async fn control_failed_tf_jobs_in_the_mesh_alone_run_on() {
    let ns = &scenario("control-exit-code", &[MESH]).await;
    let jobs = [failing_with(138), failing_with(1)];
    for (job, code) in jobs.iter().zip([138, 1]) {
        ns.create_object(job.clone()).await;
        let stuck = |pod: PodView| pod.exit_code("tensorflow") == Some(code) && pod.is_ready(PROXY_CONTAINER);
        ns.until_a_pod(&label_of(name_of(job)), "the training's end", stuck).await;
    }
    ns.holds_for(Duration::from_secs(15), "both trainings failed, both TFJobs run on", async || {
        let [retried, for_good] = [ns.get(&jobs[0]).await, ns.get(&jobs[1]).await];
        !has_condition(&retried, "Restarting") && !has_condition(&for_good, "Failed")
    })
    .await;
}

pub(crate) async fn exit_code_policy_retries_retryable_codes() {
    let ns = &scenario("exit-code", &[MESH, OPT_IN]).await;
    // 138 is SIGUSR1, by which a training asks for a retry; 1 is for good.
    let (retried, for_good) = (failing_with(138), failing_with(1));
    ns.create_object(retried.clone()).await;
    ns.create_object(for_good.clone()).await;
    ns.until_condition(&retried, &["Restarting"]).await;
    ns.until_condition(&for_good, &["Failed"]).await;
    open_gate(ns).await;
    ns.until_condition(&retried, &["Succeeded"]).await;
    assert!(has_condition(&ns.get(&for_good).await, "Failed"));
}

pub(crate) async fn control_py_torch_job_in_the_mesh_alone_does_not_end() {
    let ns = &scenario("control-torch", &[MESH]).await;
    // A worker's requests reach the master through both proxies or not at all.
    ns.create_objects([strict(), py_torch_job()]).await;
    hangs_without(ns, &py_torch_job(), "Succeeded", &label_of("train"), "pytorch").await;
}

pub(crate) async fn py_torch_job_trains_through_the_mesh() {
    let ns = &scenario("torch", &[MESH, OPT_IN]).await;
    ns.create_objects([strict(), py_torch_job()]).await;
    pods_of_training(ns).await;
}

pub(crate) async fn workers_of_a_py_torch_job_are_refused_under_restricted() {
    let ns = &scenario("torch-restricted", &[RESTRICTED]).await;
    let mut job = py_torch_job();
    for replicas in ["Master", "Worker"] {
        let template = &mut job["spec"]["pytorchReplicaSpecs"][replicas]["template"];
        *template = restricted(template.take());
    }
    ns.create_object(job).await;
    let events = ["-n", ns.name(), "get", "events", "--output=jsonpath={.items[*].message}"];
    let refusal =
        "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"init-pytorch\"";
    ns.until("a worker's refusal", async || kubectl(&events).contains(refusal).then_some(())).await;
    let master = format!("{},training.kubeflow.org/replica-type=master", label_of("train"));
    ns.until("the master, which has no such container", async || ns.pods_with(&master).await.pop()).await;
}
