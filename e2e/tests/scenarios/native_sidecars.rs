//! Pods that bring native sidecars of their own. The kubelet ends those when the regular containers have ended, and the
//! shim must not keep it from that.

use contract::names::{MODE_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{NEEDS_PROXY, annotated, native_sidecar, pod, pod_spec, shell, with_default_grace, with_init};
use e2e::{Namespace, PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::command::inject;

/// Returns a pod with these init containers.
fn pod_with(name: &str, init_containers: &[Value], mode: &str) -> Value {
    let spec = with_default_grace(pod_spec("Never", &[shell("main", "sleep 2")]));
    annotated(pod(name, &with_init(spec, init_containers)), MODE_ANNOTATION, mode)
}

/// Waits for a pod's end, and asserts that the kubelet ended its native sidecars at the first try: by SIGTERM, after the
/// regular containers, with no restart of a sidecar or of the shim. Returns the pod.
async fn kubelet_ends_the_sidecars_of(ns: &Namespace, name: &str) -> Pod {
    let pod = ns.until_ended(name, "Succeeded").await;
    let view = PodView(&pod);
    assert_eq!(view.restarts_of_shim(), 0, "{name}: {}", view.in_a_line());
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
    pod
}

#[tokio::test]
async fn pod_with_native_sidecars_ends_in_each_mode() {
    // The webhook adds the shim at the end of the init containers.
    let ns = &scenario("sidecars-before", &[MESH, OPT_IN]).await;
    let modes = ["native", "proxy", "status"];
    let shapes = [
        ("one", vec![native_sidecar("first")]),
        ("two", vec![native_sidecar("first"), native_sidecar("second")]),
        ("init-between", vec![native_sidecar("first"), shell("prepare", "true")]),
    ];
    for mode in modes {
        for (shape, init_containers) in &shapes {
            ns.create_object(pod_with(&format!("{mode}-{shape}"), init_containers, mode)).await;
        }
    }
    for mode in modes {
        for (shape, _) in &shapes {
            let pod = kubelet_ends_the_sidecars_of(ns, &format!("{mode}-{shape}")).await;
            assert_eq!(PodView(&pod).shim_mode(), Some(mode), "{mode}-{shape}");
        }
    }
}

/// Returns the pod as `istio-aux inject` prints it, with the shim's container moved to this place among the init containers.
fn injected_with_shim_at(pod: &Value, place: usize) -> Value {
    let mut pod: Value = serde_json::from_str(&inject(&pod.to_string())).expect("it prints JSON");
    let init_containers = pod["spec"]["initContainers"].as_array_mut().expect("it has init containers");
    let shim = init_containers.pop().expect("the shim is the last");
    assert_eq!(shim["name"], SHIM_CONTAINER);
    init_containers.insert(place, shim);
    pod
}

#[tokio::test]
async fn native_sidecars_last_words_need_istios_proxy_to_be_one() {
    let ns = &scenario("last-words", &[MESH, OPT_IN]).await;
    let mut shipper = shell("shipper", &format!("trap '{NEEDS_PROXY}; exit 0' TERM; sleep 86400 & wait"));
    shipper["restartPolicy"] = json!("Always");
    // An ordinary proxy is one of the containers after whose end the kubelet ends native sidecars.
    for (mode, code) in [("native", 99), ("istio", 0)] {
        ns.create_object(pod_with(mode, &[shipper.clone()], mode)).await;
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert_eq!(PodView(&pod).exit_code("shipper"), Some(code), "{mode}: {}", PodView(&pod).in_a_line());
    }
}

#[tokio::test]
async fn pod_with_native_sidecars_after_the_shim_ends() {
    // The webhook never places its sidecar before one of the user's, but a manifest that was injected by hand, or a webhook
    // that is called later, can.
    let ns = &scenario("sidecars-after", &[MESH]).await;
    let pods = [
        (pod_with("after", &[native_sidecar("first")], "native"), 0),
        (pod_with("around", &[native_sidecar("first"), native_sidecar("second")], "native"), 1),
        (pod_with("init-between", &[shell("prepare", "true"), native_sidecar("first")], "native"), 0),
    ];
    ns.create_objects(pods.iter().map(|(pod, place)| injected_with_shim_at(pod, *place))).await;
    for name in ["after", "around", "init-between"] {
        kubelet_ends_the_sidecars_of(ns, name).await;
    }
}
