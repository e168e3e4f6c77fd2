//! Gateways and waypoints: the proxy is the pod's purpose, and istio-aux leaves it as it is.

use contract::names::{
    GATEWAY_NAME_LABEL, MANAGED_GATEWAY_LABEL, PROXY_CONFIG_ANNOTATION, PROXY_CONTAINER, STATUS_ANNOTATION,
    TEMPLATES_ANNOTATION,
};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{gateway, payload_image, pod};
use e2e::{PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

fn is_left_alone(pod: &Pod) {
    let view = PodView(pod);
    let spec = pod.spec.clone().unwrap_or_default();
    assert_eq!(spec.containers[0].name, PROXY_CONTAINER);
    assert_eq!(spec.containers[0].lifecycle, None);
    for annotation in [PROXY_CONFIG_ANNOTATION, STATUS_ANNOTATION] {
        assert_eq!(view.annotation(annotation), None);
    }
}

#[tokio::test]
async fn deployed_gateway_is_unchanged() {
    let ns = &scenario("gateway", &[MESH, OPT_IN]).await;
    ns.create_object(gateway("edge", "istio")).await;
    let pod = ns.pod_with(&format!("{GATEWAY_NAME_LABEL}=edge")).await;
    is_left_alone(&pod);
    let name = pod.metadata.name.unwrap_or_default();
    ns.pod_until(&name, "readiness", |pod| PodView(pod).is_ready(PROXY_CONTAINER).then_some(())).await;
}

#[tokio::test]
async fn injected_gateway_is_unchanged() {
    let ns = &scenario("gateway-injected", &[MESH, OPT_IN]).await;
    let proxy = json!({"name": PROXY_CONTAINER, "image": "auto", "imagePullPolicy": "IfNotPresent"});
    let mut gateway = pod("gateway", &json!({"containers": [proxy]}));
    gateway["metadata"]["annotations"] = json!({TEMPLATES_ANNOTATION: "gateway"});
    ns.create_object(gateway).await;
    is_left_alone(&ns.pod("gateway").await);
    ns.pod_until("gateway", "readiness", |pod| PodView(pod).is_ready(PROXY_CONTAINER).then_some(())).await;
}

#[tokio::test]
async fn waypoint_is_unchanged() {
    let ns = &scenario("waypoint", &[MESH, OPT_IN]).await;
    let container = json!({"name": PROXY_CONTAINER, "image": payload_image(), "command": ["sleep", "1000"]});
    let mut waypoint = pod("waypoint", &json!({"containers": [container], "terminationGracePeriodSeconds": 1}));
    waypoint["metadata"]["labels"] = json!({
        GATEWAY_NAME_LABEL: "waypoint", MANAGED_GATEWAY_LABEL: "istio.io-mesh-controller",
        "sidecar.istio.io/inject": "false",
    });
    ns.create_object(waypoint).await;
    is_left_alone(&ns.pod("waypoint").await);
}
