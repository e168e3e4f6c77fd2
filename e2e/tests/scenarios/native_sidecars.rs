//! Pods that bring native sidecars of their own. The kubelet ends those when the regular containers have ended, and the
//! shim must not keep it from that.

use contract::names::{MODE_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::printed;
use e2e::manifests::{annotated, job, native_sidecar, pod, pod_spec, shell, with_default_grace, with_init};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::command::istio_aux;

/// Returns a pod with these init containers.
fn pod_with(name: &str, init_containers: &[Value], mode: &str) -> Value {
    let spec = with_default_grace(pod_spec("Never", &[shell("main", "sleep 2")]));
    annotated(pod(name, &with_init(spec, init_containers)), MODE_ANNOTATION, mode)
}

/// Waits for a pod's end, and asserts that the kubelet ended its native sidecars at the first try: by SIGTERM, after the
/// regular containers, with no restart of a sidecar or of the shim.
async fn kubelet_ends_the_sidecars_of(ns: &Namespace, name: &str) {
    assert_eq!(ns.final_phase(name).await, "Succeeded", "{name}");
    let pod = ns.pod(name).await;
    let view = PodView(&pod);
    assert_eq!(view.restarts(SHIM_CONTAINER).unwrap_or_default(), 0, "{name}: {}", view.in_a_line());
    let init_containers = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()).expect("it has some");
    let sidecars = init_containers.iter().filter(|container| container.restart_policy.is_some());
    let own: Vec<&str> =
        sidecars.map(|container| container.name.as_str()).filter(|name| *name != SHIM_CONTAINER).collect();
    assert!(!own.is_empty(), "{name} has native sidecars of its own");
    for sidecar in own {
        assert_eq!(view.restarts(sidecar), Some(0), "{name}: {}", view.in_a_line());
        let log = ns.logs(name, sidecar).await;
        assert_eq!(log.matches("got SIGTERM").count(), 1, "{name} {sidecar}: {log}");
        for container in ["main", PROXY_CONTAINER] {
            assert!(view.ended_at(sidecar) >= view.ended_at(container), "{name}: {sidecar} outlived {container}");
        }
    }
}

/// Asserts that pods end whose sidecars come before the shim, which the webhook adds at the end of the init containers.
async fn pods_with_sidecars_before_the_shim_end(mode: &str, expected_mode: &str) {
    scenario(&format!("sidecars-{mode}"), &[MESH, OPT_IN], async |ns: &Namespace| {
        let pods = [
            pod_with("one", &[native_sidecar("first")], mode),
            pod_with("two", &[native_sidecar("first"), native_sidecar("second")], mode),
            pod_with("init-between", &[native_sidecar("first"), shell("prepare", "true")], mode),
        ];
        for pod in &pods {
            ns.create_object(pod.clone()).await;
        }
        for name in ["one", "two", "init-between"] {
            kubelet_ends_the_sidecars_of(ns, name).await;
            assert_eq!(PodView(&ns.pod(name).await).shim_mode(), Some(expected_mode), "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn pod_with_native_sidecars_ends_in_mode_native() {
    pods_with_sidecars_before_the_shim_end("native", "native").await;
}

#[tokio::test]
async fn pod_with_native_sidecars_ends_in_mode_proxy() {
    pods_with_sidecars_before_the_shim_end("proxy", "proxy").await;
}

#[tokio::test]
async fn pod_with_native_sidecars_gets_mode_proxy_by_default() {
    pods_with_sidecars_before_the_shim_end("auto", "proxy").await;
}

/// Returns the pod as `istio-aux inject` prints it, with the shim's container moved to this place among the init containers.
fn injected_with_shim_at(pod: &Value, place: usize) -> Value {
    let text = printed(&istio_aux(&["inject", "--assume-proxy", "-f", "-"], &pod.to_string()));
    let mut pod: Value = serde_json::from_str(&text).expect("it prints JSON");
    let init_containers = pod["spec"]["initContainers"].as_array_mut().expect("it has init containers");
    let shim = init_containers.pop().expect("the shim is the last");
    assert_eq!(shim["name"], SHIM_CONTAINER);
    assert!(shim["args"].as_array().is_some_and(|args| args.contains(&json!("--stay"))), "{shim}");
    init_containers.insert(place, shim);
    pod
}

#[tokio::test]
async fn job_with_a_native_sidecar_completes() {
    scenario("shipper-native", &[MESH, OPT_IN], async |ns: &Namespace| {
        let spec = with_init(pod_spec("Never", &[shell("main", "sleep 1")]), &[native_sidecar("shipper")]);
        ns.create_object(job("ship", &spec)).await;
        ns.until_complete("ship").await;
    })
    .await;
}

#[tokio::test]
async fn pod_with_native_sidecars_after_the_shim_ends() {
    // The webhook never places its sidecar before one of the user's, but a manifest that was injected by hand, or a webhook
    // that is called later, can.
    scenario("sidecars-after", &[MESH], async |ns: &Namespace| {
        let pods = [
            (pod_with("after", &[native_sidecar("first")], "native"), 0),
            (pod_with("around", &[native_sidecar("first"), native_sidecar("second")], "native"), 1),
            (pod_with("init-between", &[shell("prepare", "true"), native_sidecar("first")], "native"), 0),
        ];
        for (pod, place) in &pods {
            ns.create_object(injected_with_shim_at(pod, *place)).await;
        }
        for name in ["after", "around", "init-between"] {
            kubelet_ends_the_sidecars_of(ns, name).await;
        }
    })
    .await;
}
