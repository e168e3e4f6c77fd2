//! Katib's trials and Argo's workflows with proxies beside their pods: Katib's collector and Argo's executor see no container of the
//! mesh.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::BESIDE;
use e2e::harness::{Group, Need};
use e2e::kubeflow::argo::{self, executor_rights, three_steps};
use e2e::kubeflow::katib::{self, COLLECT_METRICS, experiment, metric_of, name_in, training_of, trial_job};
use e2e::{Namespace, PodView, group, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const NODE_AGENT: Need = Need::Object("runtimeclass", "istio-aux");

/// Returns the test of Katib.
pub(crate) fn group_of_katib() -> Group {
    group!(
        "katib-beside",
        &[NODE_AGENT, Need::Kind("experiments.kubeflow.org")],
        [trial_beside_its_proxy_ends_with_its_metric]
    )
}

/// Returns the test of Argo.
pub(crate) fn group_of_argo() -> Group {
    group!(
        "argo-beside",
        &[NODE_AGENT, Need::Kind("workflows.argoproj.io")],
        [workflow_beside_its_proxies_ends_with_outputs]
    )
}

/// Asserts that each pod has its proxy beside it, and ends.
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

async fn trial_beside_its_proxy_ends_with_its_metric() {
    scenario("node-katib", &[BESIDE, COLLECT_METRICS], async |ns: &Namespace| {
        let name = name_in(ns.name(), "beside");
        let mut tune = experiment(&name, 1, 1, &trial_job("Never", &training_of(4)));
        // Else Katib deletes the trial's Job as it ends.
        tune["spec"]["trialTemplate"]["retain"] = json!(true);
        ns.create_object(tune.clone()).await;
        ns.until_condition(&tune, &["Succeeded"]).await;
        let trial = json!({"apiVersion": "kubeflow.org/v1beta1", "kind": "Trial"});
        let trials = ns.list(&trial, &katib::label_of(&name)).await;
        assert_eq!(trials.iter().filter_map(metric_of).count(), 1);
        let label = format!("{},batch.kubernetes.io/job-name", katib::label_of(&name));
        assert_beside_and_ended(ns, &label).await;
    })
    .await;
}

async fn workflow_beside_its_proxies_ends_with_outputs() {
    scenario("node-argo", &[BESIDE], async |ns: &Namespace| {
        ns.create_objects(executor_rights()).await;
        let flow = three_steps("steps");
        ns.create_object(flow.clone()).await;
        let ended = ns
            .until("the workflow's end", async || {
                Some(ns.get(&flow).await).filter(|now| argo::final_phase(now).is_some())
            })
            .await;
        assert_eq!(argo::final_phase(&ended), Some("Succeeded"), "{}", ended["status"]);
        assert_eq!(argo::output(&ended, "second", "word"), Some("steps"));
        assert_beside_and_ended(ns, &argo::label_of("steps")).await;
    })
    .await;
}
