//! A run of Kubeflow Pipelines whose API server and store take mutual TLS only, in profiles with and without Pod Security
//! `restricted`: outside the mesh, with a sidecar that the shim or the kubelet ends, and with the proxy beside the pod.

use contract::names::MODE_ANNOTATION;
use e2e::cluster::{BESIDE, Label, MESH, OPT_IN, RESTRICTED};
use e2e::manifests::{annotated, restricted, shell};
use e2e::stand_ins::{asks_api_server, pipelines_pod, programs, start_servers};
use e2e::{Namespace, scenario};
use serde_json::Value;

const IN_THE_MESH: Label = ("istio-aux.io/mesh", "run-to-completion");

/// Returns the kinds of pods of a run.
fn run(kubeflow: &str) -> Vec<Value> {
    // A launcher is copied into place by an init container, which needs no network.
    let kinds = ["driver", "launcher", "importer", "exit-handler"];
    let mut pods = kinds.map(|kind| pipelines_pod(kind, kubeflow)).to_vec();
    // As proposed upstream (pipelines#13258): the driver is no pod, but an init container of the launcher's.
    let mut driver_inside = pipelines_pod("driver-inside", kubeflow);
    let init = driver_inside["spec"]["initContainers"].as_array_mut().expect("it has one");
    init.push(shell("driver", &asks_api_server(kubeflow)));
    pods.push(restricted(driver_inside));
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

#[tokio::test]
async fn pipeline_runs_under_strict_and_restricted_beside_its_proxies_only() {
    let kubeflow = &scenario("kubeflow", &[MESH]).await;
    start_servers(kubeflow).await;
    let run = || run(kubeflow.name());
    let ([all_fail, all_run, all_refused], no_driver_inside) = (
        ["Failed", "Succeeded", "refused"].map(|outcome| vec![outcome; 5]),
        [&["Succeeded"; 4][..], &["Failed"]].concat(),
    );
    let sidecar = &[MESH, OPT_IN, IN_THE_MESH][..];
    let of_restricted = |labels: &[Label]| [labels, &[RESTRICTED]].concat();
    let table = [
        ("outside", vec![RESTRICTED], run(), all_fail.clone()),
        // The annotation opts out of the proxy beside the pod, too.
        ("node-by-one-label", of_restricted(&[BESIDE]), run(), all_fail),
        ("shim", sidecar.to_vec(), run(), no_driver_inside),
        ("native", sidecar.to_vec(), in_mode("istio", run()), all_run.clone()),
        ("shim-restricted", of_restricted(sidecar), run(), all_refused.clone()),
        ("native-restricted", of_restricted(sidecar), in_mode("istio", run()), all_refused),
        ("node", of_restricted(&[BESIDE, IN_THE_MESH]), run(), all_run),
    ];
    for (profile, labels, pods, expected) in table {
        let ns = &scenario(profile, &labels).await;
        assert_eq!(outcomes(ns, pods).await, expected, "{profile}");
        for pod in ns.pods_with("workflows.argoproj.io/workflow").await {
            let class = pod.spec.and_then(|spec| spec.runtime_class_name);
            assert_eq!(class.is_some(), profile == "node", "{profile}: {class:?}");
        }
    }
}
