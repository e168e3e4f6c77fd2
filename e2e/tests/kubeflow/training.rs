//! Training jobs of Kubeflow's training operator: pods are cleaned up, restarted and counted as they would be without a mesh.

use std::time::Duration;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{shell, strict, tf_job};
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::{Value, json};

use crate::{any, behind_gate, name_of, open_gate, until_a_pod};

fn label_of(job: &str) -> String {
    format!("training.kubeflow.org/job-name={job}")
}

/// A worker that ends, and a parameter server that does not.
fn with_parameter_server(policy: &str) -> Value {
    let mut job = tf_job(&policy.to_lowercase(), 1, "Never", "sleep 2");
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("tensorflow", "exec sleep 900")]});
    job["spec"]["tfReplicaSpecs"]["PS"] = json!({"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}});
    job["spec"]["runPolicy"] = json!({"cleanPodPolicy": policy});
    job
}

/// Which pods a policy leaves: how many, and how many of these run.
const LEFT: [(&str, usize, usize); 3] = [("None", 2, 1), ("Running", 1, 0), ("All", 0, 0)];

#[tokio::test]
async fn control_tf_job_in_the_mesh_alone_is_never_cleaned_up() {
    scenario("control-clean", &[MESH], async |ns: &Namespace| {
        let job = with_parameter_server("All");
        ns.create_object(job.clone()).await;
        let stuck = |pod: PodView| pod.is_stuck("tensorflow");
        until_a_pod(ns, &label_of("all"), "the worker's end", stuck).await;
        ns.holds_for(Duration::from_secs(15), "worker ended, both pods there, TFJob not succeeded", async || {
            ns.pods_with(&label_of("all")).await.len() == 2 && !has_condition(&ns.get(&job).await, "Succeeded")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn clean_pod_policy_leaves_the_pods_it_says() {
    scenario("clean", &[MESH, OPT_IN], async |ns: &Namespace| {
        for (policy, ..) in LEFT {
            ns.create_object(with_parameter_server(policy)).await;
        }
        for (policy, pods, running) in LEFT {
            let job = with_parameter_server(policy);
            ns.until(&format!("TFJob {policy} to succeed"), async || {
                has_condition(&ns.get(&job).await, "Succeeded").then_some(())
            })
            .await;
            ns.until(
                &format!("{pods} pods to be left, of which {running} run, by cleanPodPolicy {policy}"),
                async || {
                    let left = ns.pods_with(&label_of(name_of(&job))).await;
                    let run = left.iter().filter(|pod| PodView(pod).runs("tensorflow")).count();
                    ((left.len(), run) == (pods, running)).then_some(())
                },
            )
            .await;
        }
    })
    .await;
}

/// A worker that fails with this code until the gate is open.
fn failing_with(code: i32) -> Value {
    let mut job =
        tf_job(&format!("code-{code}"), 1, "ExitCode", &format!("sleep 1; test -e /gate/open || exit {code}"));
    let spec = &mut job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"];
    *spec = behind_gate(spec.take());
    job
}

#[tokio::test]
async fn control_failed_tf_jobs_in_the_mesh_alone_neither_restart_nor_fail() {
    scenario("control-exit-code", &[MESH], async |ns: &Namespace| {
        let jobs = [failing_with(138), failing_with(1)];
        for (job, code) in jobs.iter().zip([138, 1]) {
            ns.create_object(job.clone()).await;
            let stuck = |pod: PodView| pod.exit_code("tensorflow") == Some(code) && pod.is_ready(PROXY_CONTAINER);
            until_a_pod(ns, &label_of(name_of(job)), "the training's end", stuck).await;
        }
        ns.holds_for(Duration::from_secs(15), "both trainings failed, both TFJobs run on", async || {
            let [retried, for_good] = [ns.get(&jobs[0]).await, ns.get(&jobs[1]).await];
            !has_condition(&retried, "Restarting") && !has_condition(&for_good, "Failed")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn exit_code_policy_retries_what_may_be_retried() {
    scenario("exit-code", &[MESH, OPT_IN], async |ns: &Namespace| {
        // 138 is SIGUSR1, by which a training asks for a retry; 1 is for good.
        let (retried, for_good) = (failing_with(138), failing_with(1));
        ns.create_object(retried.clone()).await;
        ns.create_object(for_good.clone()).await;
        ns.until("the retry of code 138", async || has_condition(&ns.get(&retried).await, "Restarting").then_some(()))
            .await;
        ns.until("the failure with code 1", async || has_condition(&ns.get(&for_good).await, "Failed").then_some(()))
            .await;
        open_gate(ns).await;
        ns.until("the retried TFJob to succeed", async || {
            has_condition(&ns.get(&retried).await, "Succeeded").then_some(())
        })
        .await;
        assert!(has_condition(&ns.get(&for_good).await, "Failed"));
    })
    .await;
}

/// A master and two workers of Python that train together.
fn py_torch_job() -> Value {
    let mut trainer = shell("pytorch", "");
    trainer["image"] = json!("docker.io/istio-aux-cluster/python:1");
    trainer["command"] = json!(["python3", "-c", include_str!("train.py")]);
    let replicas = |count: u32| {
        json!({
            "replicas": count, "restartPolicy": "OnFailure",
            "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [trainer.clone()]}},
        })
    };
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(2)}},
    })
}

/// All of the namespace speaks mutual TLS only: what a worker sends reaches the master through both proxies or not at all.
async fn demand_mutual_tls(ns: &Namespace) {
    ns.create_object(strict()).await;
}

#[tokio::test]
async fn control_py_torch_job_in_the_mesh_alone_trains_and_does_not_succeed() {
    scenario("control-torch", &[MESH], async |ns: &Namespace| {
        demand_mutual_tls(ns).await;
        ns.create_object(py_torch_job()).await;
        let stuck = |pod: PodView| pod.is_stuck("pytorch");
        until_a_pod(ns, &label_of("train"), "the training's end", stuck).await;
        ns.holds_for(Duration::from_secs(15), "training ended, PyTorchJob not succeeded", async || {
            any(&ns.pods_with(&label_of("train")).await, stuck)
                && !has_condition(&ns.get(&py_torch_job()).await, "Succeeded")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn py_torch_job_trains_through_the_mesh_and_succeeds() {
    scenario("torch", &[MESH, OPT_IN], async |ns: &Namespace| {
        demand_mutual_tls(ns).await;
        ns.create_object(py_torch_job()).await;
        ns.until("PyTorchJob train to succeed", async || {
            has_condition(&ns.get(&py_torch_job()).await, "Succeeded").then_some(())
        })
        .await;
        let pods = ns.pods_with(&label_of("train")).await;
        ns.until("all three pods to succeed", async || {
            let pods = ns.pods_with(&label_of("train")).await;
            (pods.len() == 3 && pods.iter().all(|pod| PodView(pod).phase() == "Succeeded")).then_some(())
        })
        .await;
        for pod in pods {
            let log = ns.logs(&pod.metadata.name.unwrap_or_default(), "pytorch").await;
            assert!(log.contains("of 3: slope=3.0"), "{log}");
        }
    })
    .await;
}
