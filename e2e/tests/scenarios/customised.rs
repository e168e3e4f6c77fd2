//! Pods that customise their proxy as Istio documents it: by a container `istio-proxy` with `image: auto`.

use contract::names::{NATIVE_SIDECAR_ANNOTATION, PROXY_CONTAINER, STATUS_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, in_modes, pod, pod_spec, shell};
use e2e::{PodView, scenario};
use serde_json::{Value, json};

use crate::{default_mode, shim_modes};

const CPU: &str = "11m";

/// Returns the specification of a pod with a customised proxy. The API server defaults the pull policy of `auto` to `Always`, which
/// would ask a registry.
fn customised() -> Value {
    let mut spec = pod_spec("Never", &[shell("main", "sleep 1")]);
    let proxy = json!({"name": PROXY_CONTAINER, "image": "auto", "imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": CPU}}});
    spec["containers"].as_array_mut().expect("it is a list").push(proxy);
    spec
}

#[tokio::test]
async fn customised_proxy_completes_in_each_mode() {
    let ns = &scenario("customised", &[MESH, OPT_IN]).await;
    let modes = shim_modes();
    ns.create_objects(in_modes(&modes, &customised())).await;
    ns.create_object(pod("auto", &customised())).await;
    for mode in modes.into_iter().chain(["auto"]) {
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert_eq!(PodView(&pod).shim_mode(), Some(if mode == "auto" { default_mode() } else { mode }));
        let spec = pod.spec.clone().expect("it has a specification");
        let proxy = spec.containers.iter().find(|container| container.name == PROXY_CONTAINER).expect("a proxy");
        let requests = proxy.resources.clone().and_then(|resources| resources.requests).unwrap_or_default();
        assert_eq!(requests["cpu"].0, CPU, "{mode}: the user's setting stands");
        assert_eq!(PodView(&pod).restarts_of_shim(), 0, "{mode}");
    }
}

#[tokio::test]
async fn customised_native_proxy_needs_no_shim() {
    let ns = &scenario("customised-native", &[MESH, OPT_IN]).await;
    ns.create_objects(in_modes(&["istio"], &customised())).await;
    for native in in_modes(&["native", "proxy"], &customised()).into_iter().chain([pod("by-istio", &customised())]) {
        ns.create_object(annotated(native, NATIVE_SIDECAR_ANNOTATION, "true")).await;
    }
    for name in ["by-istio", "istio", "native", "proxy"] {
        let pod = ns.until_ended(name, "Succeeded").await;
        assert!(!PodView(&pod).has_shim(), "{name}");
        let status = PodView(&pod).annotation(STATUS_ANNOTATION).unwrap_or_default();
        assert!(status.contains("istio-proxy is a native sidecar"), "{name}: {status}");
    }
}
