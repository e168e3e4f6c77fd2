//! Katib's trials and Argo's workflows with proxies beside their pods: Katib's collector and Argo's executor share the pod
//! with no container of the mesh.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::BESIDE;
use e2e::kubeflow::argo::{self, executor_rights, step, workflow};
use e2e::kubeflow::katib::{self, COLLECT_METRICS, experiment, metric_of, name_in, training_of, trial_job};
use e2e::{Namespace, PodView, has_condition, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Each has its proxy beside it, and ends.
async fn assert_beside_and_ended(ns: &Namespace, label: &str) {
    let pods = ns.pods_with(label).await;
    assert!(!pods.is_empty(), "there are pods with {label}");
    for pod in pods {
        let spec = pod.spec.as_ref().expect("a pod has a spec");
        assert_eq!(spec.runtime_class_name.as_deref(), Some("istio-aux"));
        assert!(spec.containers.iter().all(|container| container.name != PROXY_CONTAINER));
        let name = pod.metadata.name.as_deref().expect("a pod has a name");
        ns.pod_until(name, "success", |pod: &Pod| (PodView(pod).phase() == "Succeeded").then_some(())).await;
    }
}

#[tokio::test]
async fn a_trial_of_katib_ends_with_its_metric() {
    scenario("node-katib", &[BESIDE, COLLECT_METRICS], async |ns: &Namespace| {
        let name = name_in(ns.name(), "beside");
        let mut tune = experiment(&name, 1, 1, &trial_job("Never", &training_of(4)));
        // Else Katib deletes the trial's Job as it ends.
        tune["spec"]["trialTemplate"]["retain"] = json!(true);
        ns.create_object(tune.clone()).await;
        ns.until("the experiment's success", async || has_condition(&ns.get(&tune).await, "Succeeded").then_some(()))
            .await;
        let trial = json!({"apiVersion": "kubeflow.org/v1beta1", "kind": "Trial"});
        let trials = ns.list(&trial, &katib::label_of(&name)).await;
        assert_eq!(trials.iter().filter_map(metric_of).count(), 1);
        let label = format!("{},batch.kubernetes.io/job-name", katib::label_of(&name));
        assert_beside_and_ended(ns, &label).await;
    })
    .await;
}

/// The first step writes a word, which the second expects.
fn two_steps() -> Value {
    let word = json!({"parameters": [{"name": "word", "value": "{{steps.first.outputs.parameters.word}}"}]});
    let all = json!({"name": "all", "steps": [
        [{"name": "first", "template": "first"}],
        [{"name": "second", "template": "second", "arguments": word}],
    ]});
    let mut first = step("first", "echo -n hello > /tmp/word");
    first["outputs"] = json!({"parameters": [{"name": "word", "valueFrom": {"path": "/tmp/word"}}]});
    let mut second = step("second", "test '{{inputs.parameters.word}}' = hello");
    second["inputs"] = json!({"parameters": [{"name": "word"}]});
    workflow("steps", &[all, first, second])
}

#[tokio::test]
async fn a_workflow_of_argo_ends_with_its_outputs() {
    scenario("node-argo", &[BESIDE], async |ns: &Namespace| {
        for object in executor_rights() {
            ns.create_object(object).await;
        }
        let flow = two_steps();
        ns.create_object(flow.clone()).await;
        let ended = ns
            .until("the workflow's end", async || {
                Some(ns.get(&flow).await).filter(|now| argo::final_phase(now).is_some())
            })
            .await;
        assert_eq!(argo::final_phase(&ended), Some("Succeeded"), "{}", ended["status"]);
        assert_eq!(argo::output(&ended, "first", "word"), Some("hello"));
        assert_beside_and_ended(ns, &argo::label_of("steps")).await;
    })
    .await;
}
