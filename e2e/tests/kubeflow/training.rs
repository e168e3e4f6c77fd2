//! Training jobs of Kubeflow's training operator: pods are cleaned up, restarted and counted as they would be without a mesh.

use std::time::Duration;

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{shell, tf_job};
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::{Value, json};

use crate::{behind_gate, name_of, open_gate, until_a_pod};

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
