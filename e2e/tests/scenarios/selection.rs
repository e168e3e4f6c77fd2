//! Which pods get what.

use contract::names::{
    DISABLED, ENABLED, HOLD_FIELD, INJECTION_LABEL, PROXY_CONFIG_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER,
    STATUS_ANNOTATION,
};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, deployment, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::final_phase;

fn quick() -> Value {
    pod("quick", &pod_spec("Never", &[shell("main", "true")]))
}

#[tokio::test]
async fn deployment_gets_the_hold_annotation_only() {
    scenario("deployment", &[MESH, OPT_IN], async |ns: &Namespace| {
        ns.create_object(deployment("lasting", &pod_spec("Always", &[shell("main", "sleep 3600")]))).await;
        let pod = ns.until("the pod", || async { ns.pods_with("app=lasting").await.pop() }).await;
        let config = PodView(&pod).annotation(PROXY_CONFIG_ANNOTATION).unwrap_or_default();
        assert!(config.contains(HOLD_FIELD), "{config}");
        assert!(!PodView(&pod).has_shim());
        let spec = pod.spec.clone().unwrap_or_default();
        assert_eq!(spec.share_process_namespace, None);
        assert_eq!(spec.containers[0].name, PROXY_CONTAINER, "Istio's injector held the payload back");
        let name = pod.metadata.name.unwrap_or_default();
        ns.pod_until(&name, "readiness", |pod| PodView(pod).is_ready("main").then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn native_proxy_needs_no_shim() {
    scenario("native-proxy", &[MESH, OPT_IN], async |ns: &Namespace| {
        ns.create_object(annotated(quick(), "sidecar.istio.io/nativeSidecar", "true")).await;
        assert_eq!(final_phase(ns, "quick").await, "Succeeded");
        let pod = ns.pod("quick").await;
        assert!(!PodView(&pod).has_shim());
        let status = PodView(&pod).annotation(STATUS_ANNOTATION).unwrap_or_default();
        assert!(status.contains("native sidecar"), "{status}");
    })
    .await;
}

#[tokio::test]
async fn pod_label_opts_one_pod_in() {
    scenario("pod-in", &[MESH], async |ns: &Namespace| {
        let mut object = quick();
        object["metadata"]["labels"] = json!({INJECTION_LABEL: ENABLED});
        ns.create_object(object).await;
        assert_eq!(final_phase(ns, "quick").await, "Succeeded");
    })
    .await;
}

#[tokio::test]
async fn pod_label_opts_one_pod_out() {
    scenario("pod-out", &[MESH, OPT_IN], async |ns: &Namespace| {
        let mut object = quick();
        object["metadata"]["labels"] = json!({INJECTION_LABEL: DISABLED});
        let pod = ns.dry_run(object).await;
        let text = serde_json::to_string(&pod).expect("a pod is JSON");
        assert!(text.contains(PROXY_CONTAINER), "Istio injects: {text}");
        assert!(!text.contains(SHIM_CONTAINER) && !text.contains(HOLD_FIELD), "istio-aux does not: {text}");
    })
    .await;
}
