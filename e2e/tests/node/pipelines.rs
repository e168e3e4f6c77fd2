//! A run of Kubeflow Pipelines and a trial of Katib whose servers take mutual TLS only, in profiles with and without Pod Security
//! `restricted`: outside the mesh, with a sidecar that the shim or the kubelet ends, and with the proxy beside the pod. And a training
//! of three pods.

use contract::names::{ISTIO_INJECT, MODE_ANNOTATION, NODE_RUNTIME_CLASS};
use e2e::cluster::{Label, MESH, NODE_PROXY, OPT_IN, RESTRICTED};
use e2e::kubeflow::torch::{pods_of_training, py_torch_job};
use e2e::manifests::{annotated, restricted, shell, strict};
use e2e::stand_ins::{FOUND_TRAINING, asks_api_server, pipelines_pod, programs, start_servers, trial_reporting_to};
use e2e::{Namespace, scenario};
use serde_json::Value;

const IN_THE_MESH: Label = ("istio-aux.io/mesh", "run-to-completion");

/// Returns the kinds of pods of a run.
fn run(kubeflow: &str) -> Vec<Value> {
    // A launcher is copied into place by an init container, which needs no network.
    let kinds = ["driver", "launcher", "importer", "exit-handler"];
    let mut pods = kinds.map(|kind| pipelines_pod(kind, kubeflow)).to_vec();
    // As proposed upstream (pipelines#13258): the driver is an init container of the launcher's pod.
    let mut driver_inside = pipelines_pod("driver-inside", kubeflow);
    let init = driver_inside["spec"]["initContainers"].as_array_mut().expect("it has one");
    init.push(shell("driver", &asks_api_server(kubeflow)));
    pods.push(restricted(driver_inside));
    // The annotation is in the templates of trials, too.
    let trial = trial_reporting_to(&format!("web.{kubeflow}"), "trial", "Never", FOUND_TRAINING);
    pods.push(annotated(restricted(trial), ISTIO_INJECT, "false"));
    pods
}

/// Returns what becomes of each pod: its phase, or that Pod Security refuses it.
async fn outcomes(ns: &Namespace, pods: Vec<Value>) -> Vec<String> {
    ns.create_object(programs()).await;
    let mut created = Vec::new();
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().expect("it has a name").to_owned();
        let refusal = ns.try_create(pod).await.err().map(|error| error.to_string());
        let is_refused = refusal.as_ref().is_some_and(|text| text.contains("violates PodSecurity \"restricted"));
        assert!(is_refused || refusal.is_none(), "{name}: {refusal:?}");
        created.push((name, is_refused));
    }
    let mut outcomes = Vec::new();
    for (name, is_refused) in created {
        outcomes.push(if is_refused { "refused".to_owned() } else { ns.final_phase(&name).await });
    }
    outcomes
}

fn in_mode(mode: &str, pods: Vec<Value>) -> Vec<Value> {
    pods.into_iter().map(|pod| annotated(pod, MODE_ANNOTATION, mode)).collect()
}

/// Asserts what becomes of each pod in a namespace with these labels, and that the pods are of the class `istio-aux` or are not.
async fn assert_outcomes(profile: &str, labels: &[Label], pods: Vec<Value>, expected: &[&str], is_beside: bool) {
    let ns = &scenario(profile, labels).await;
    assert_eq!(outcomes(ns, pods).await, expected, "{profile}");
    for pod in ns.pods_with("").await {
        let class = pod.spec.and_then(|spec| spec.runtime_class_name);
        assert_eq!(class.is_some(), is_beside, "{profile}: {class:?}");
    }
}

#[tokio::test]
async fn pipeline_runs_under_strict_and_restricted_beside_its_proxies() {
    let kubeflow = &scenario("kubeflow", &[MESH]).await;
    start_servers(kubeflow).await;
    let pods = run(kubeflow.name());
    assert_outcomes("node", &[NODE_PROXY, IN_THE_MESH, RESTRICTED], pods, &["Succeeded"; 6], true).await;
}

#[tokio::test]
async fn control_pipeline_runs_under_strict_and_restricted_in_no_other_way() {
    let kubeflow = &scenario("kubeflow", &[MESH]).await;
    start_servers(kubeflow).await;
    let run = || run(kubeflow.name());
    let [all_fail, all_run, all_refused] = ["Failed", "Succeeded", "refused"].map(|outcome| [outcome; 6]);
    let no_driver_inside = ["Succeeded", "Succeeded", "Succeeded", "Succeeded", "Failed", "Succeeded"];
    let sidecar = &[MESH, OPT_IN, IN_THE_MESH][..];
    let restricted = &[sidecar, &[RESTRICTED]].concat()[..];
    for (profile, labels, pods, expected) in [
        ("outside", &[RESTRICTED][..], run(), all_fail),
        // The annotation opts out of the proxy beside the pod, too.
        ("node-by-one-label", &[NODE_PROXY, RESTRICTED], run(), all_fail),
        ("shim", sidecar, run(), no_driver_inside),
        ("native", sidecar, in_mode("istio", run()), all_run),
        ("shim-restricted", restricted, run(), all_refused),
        ("native-restricted", restricted, in_mode("istio", run()), all_refused),
    ] {
        assert_outcomes(profile, labels, pods, &expected, false).await;
    }
}

#[tokio::test]
async fn training_of_three_pods_completes_under_strict() {
    // Pod Security `restricted` refuses the init container that the training operator gives workers, in a mesh or not.
    let ns = &scenario("node-torch", &[NODE_PROXY, IN_THE_MESH]).await;
    // A worker's requests reach the master through both proxies or not at all.
    ns.create_objects([strict(), py_torch_job()]).await;
    for pod in pods_of_training(ns).await {
        let class = pod.spec.and_then(|spec| spec.runtime_class_name);
        assert_eq!(class.as_deref(), Some(NODE_RUNTIME_CLASS));
    }
}
