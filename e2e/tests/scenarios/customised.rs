//! Pods that customise their proxy as Istio documents it: by a container `istio-proxy` with `image: auto`.

use contract::names::{MODE_ANNOTATION, NATIVE_SIDECAR_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER, STATUS_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{default_mode, shim_modes};

const CPU: &str = "11m";

/// Returns a pod with a customised proxy. The API server defaults the pull policy of `auto` to `Always`, which would ask a
/// registry.
fn customised(name: &str) -> Value {
    let mut spec = pod_spec("Never", &[shell("main", "sleep 1")]);
    let proxy = json!({"name": PROXY_CONTAINER, "image": "auto", "imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": CPU}}});
    spec["containers"].as_array_mut().expect("it is a list").push(proxy);
    pod(name, &spec)
}

#[tokio::test]
async fn customised_proxy_completes_in_each_mode() {
    scenario("customised", &[MESH, OPT_IN], async |ns: &Namespace| {
        let modes = shim_modes();
        for mode in &modes {
            ns.create_object(annotated(customised(mode), MODE_ANNOTATION, mode)).await;
        }
        ns.create_object(customised("auto")).await;
        for mode in modes.into_iter().chain(["auto"]) {
            assert_eq!(ns.final_phase(mode).await, "Succeeded", "{mode}");
            let pod = ns.pod(mode).await;
            assert_eq!(PodView(&pod).shim_mode(), Some(if mode == "auto" { default_mode() } else { mode }));
            let spec = pod.spec.clone().expect("it has a specification");
            let proxy = spec.containers.iter().find(|container| container.name == PROXY_CONTAINER).expect("a proxy");
            let requests = proxy.resources.clone().and_then(|resources| resources.requests).unwrap_or_default();
            assert_eq!(requests["cpu"].0, CPU, "{mode}: the user's setting stands");
            assert_eq!(PodView(&pod).restarts(SHIM_CONTAINER).unwrap_or_default(), 0, "{mode}");
        }
    })
    .await;
}

#[tokio::test]
async fn customised_native_proxy_needs_no_shim() {
    scenario("customised-native", &[MESH, OPT_IN], async |ns: &Namespace| {
        ns.create_object(annotated(customised("by-istio"), NATIVE_SIDECAR_ANNOTATION, "true")).await;
        ns.create_object(annotated(customised("asked"), MODE_ANNOTATION, "istio")).await;
        for mode in ["native", "proxy"] {
            let pod = annotated(customised(mode), MODE_ANNOTATION, mode);
            ns.create_object(annotated(pod, NATIVE_SIDECAR_ANNOTATION, "true")).await;
        }
        for name in ["by-istio", "asked", "native", "proxy"] {
            assert_eq!(ns.final_phase(name).await, "Succeeded", "{name}");
            let pod = ns.pod(name).await;
            assert!(!PodView(&pod).has_shim(), "{name}");
            let status = PodView(&pod).annotation(STATUS_ANNOTATION).unwrap_or_default();
            assert!(status.contains("istio-proxy is a native sidecar"), "{name}: {status}");
        }
    })
    .await;
}
