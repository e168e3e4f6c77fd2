//! Which pods get what.

use contract::names::{
    DISABLED, ENABLED, HOLD_FIELD, INJECTION_LABEL, MODE_ANNOTATION, NATIVE_SIDECAR_ANNOTATION,
    PROXY_CONFIG_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER, STATUS_ANNOTATION,
};
#[cfg(feature = "one-node")]
use e2e::audit::Audit;
use e2e::cluster::{MESH, OPT_IN};
#[cfg(feature = "one-node")]
use e2e::manifests::job;
use e2e::manifests::{annotated, deployment, in_modes, pod, pod_spec, shell, without_token};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{default_mode, shim_modes, start_server};

fn quick() -> Value {
    pod("quick", &pod_spec("Never", &[shell("main", "true")]))
}

#[tokio::test]
async fn deployment_gets_the_hold_annotation_only() {
    let ns = &scenario("deployment", &[MESH, OPT_IN]).await;
    ns.create_object(deployment("lasting", &pod_spec("Always", &[shell("main", "sleep 3600")]))).await;
    let pod = ns.pod_with("app=lasting").await;
    let config = PodView(&pod).annotation(PROXY_CONFIG_ANNOTATION).unwrap_or_default();
    assert!(config.contains(HOLD_FIELD), "{config}");
    assert!(!PodView(&pod).has_shim());
    let spec = pod.spec.clone().unwrap_or_default();
    assert_eq!(spec.share_process_namespace, None);
    assert_eq!(spec.containers[0].name, PROXY_CONTAINER, "Istio's injector held the payload back");
    let name = pod.metadata.name.unwrap_or_default();
    ns.pod_until(&name, "readiness", |pod| PodView(pod).is_ready("main").then_some(())).await;
}

/// The tests' own requests are not in the log, but a Job's controller's are.
#[cfg(feature = "one-node")]
#[tokio::test]
async fn audit_log_has_the_decision() {
    let ns = &scenario("audited", &[MESH, OPT_IN]).await;
    let audit = Audit::from_now();
    ns.create_object(job("audited", &pod_spec("Never", &[shell("main", "true")]))).await;
    ns.until_complete("audited").await;
    let decisions = audit.count(|event| {
        let is_pod = event["objectRef"]["namespace"] == ns.name() && event["objectRef"]["resource"] == "pods";
        let decided = |field: &str| event["annotations"][format!("add-shim.namespace.istio-aux.io/{field}")].as_str();
        (is_pod && event["verb"] == "create").then(|| Some(format!("{}: {}", decided("mode")?, decided("reason")?)))?
    });
    let mode = default_mode();
    let reason = match mode {
        "proxy" => "the server has no native sidecars",
        _ => "the pod runs to completion, and its istio-proxy would not end by itself",
    };
    assert_eq!(decisions, [(format!("{mode}: {reason}"), 1)].into());
}

#[tokio::test]
async fn native_proxy_needs_no_shim() {
    let ns = &scenario("native-proxy", &[MESH, OPT_IN]).await;
    let pod = ns.run(annotated(quick(), NATIVE_SIDECAR_ANNOTATION, "true"), "Succeeded").await;
    assert!(!PodView(&pod).has_shim());
    let status = PodView(&pod).annotation(STATUS_ANNOTATION).unwrap_or_default();
    assert!(status.contains("native sidecar"), "{status}");
}

#[tokio::test]
async fn pod_label_opts_one_pod_in() {
    let ns = &scenario("pod-in", &[MESH]).await;
    let mut object = quick();
    object["metadata"]["labels"] = json!({INJECTION_LABEL: ENABLED});
    ns.run(object, "Succeeded").await;
}

#[tokio::test]
async fn pod_label_opts_one_pod_out() {
    let ns = &scenario("pod-out", &[MESH, OPT_IN]).await;
    let mut object = quick();
    object["metadata"]["labels"] = json!({INJECTION_LABEL: DISABLED});
    let text = ns.dry_run(object).await.to_string();
    assert!(text.contains(PROXY_CONTAINER), "Istio injects: {text}");
    assert!(!text.contains(SHIM_CONTAINER) && !text.contains(HOLD_FIELD), "istio-aux does not: {text}");
}

/// Returns a pod as Istio's injector makes it, without what the API server adds to each: what `istioctl kube-inject` writes.
async fn injected_by_hand(mesh: &Namespace, pod: Value) -> Value {
    let pod = without_token(mesh.dry_run(pod).await);
    let metadata = json!({"name": pod["metadata"]["name"], "labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]})
}

#[tokio::test]
async fn hand_injected_pod_is_held_and_ended() {
    let mesh = &scenario("by-hand-mesh", &[MESH]).await;
    start_server(mesh).await;
    let script = format!("curl -sSf --max-time 5 http://web.{}/ && sleep 1", mesh.name());
    let spec = pod_spec("Never", &[shell("main", &script)]);
    let injected = injected_by_hand(mesh, pod("one", &spec)).await;
    assert!(injected.to_string().contains(PROXY_CONTAINER), "Istio has injected");
    let ns = &scenario("control-by-hand", &[]).await;
    ns.create_object(injected.clone()).await;
    // It fails at its first instruction, and hangs.
    let code = ns.pod_until("one", "the payload's end", |pod| PodView(pod).exit_code("main")).await;
    assert_ne!(code, 0, "the proxy was not ready");
    assert_eq!(PodView(&ns.pod("one").await).phase(), "Running");
    let ns = &scenario("by-hand", &[OPT_IN]).await;
    ns.run(injected, "Succeeded").await;
}

#[tokio::test]
async fn shim_fits_into_a_namespace_with_a_limit_range() {
    let ns = &scenario("limit-range", &[MESH, OPT_IN]).await;
    ns.create_object(json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "bounds"},
        "spec": {"limits": [{
            "type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "10m", "memory": "16Mi"},
            "min": {"cpu": "1m", "memory": "4Mi"}, "max": {"memory": "1Gi"},
        }]},
    }))
    .await;
    let pod = ns.run(quick(), "Succeeded").await;
    assert_eq!(PodView(&pod).shim_mode(), Some(default_mode()));
}

#[tokio::test]
async fn shim_meets_a_quota_of_limits_and_a_limit_range() {
    let ns = &scenario("quota", &[MESH, OPT_IN]).await;
    let hard = json!({"requests.cpu": "8", "requests.memory": "8Gi", "limits.cpu": "32", "limits.memory": "32Gi"});
    let range = json!([{
        "type": "Container", "max": {"ephemeral-storage": "1Gi"},
        "maxLimitRequestRatio": {"ephemeral-storage": "1"},
    }]);
    ns.create_objects([
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}, "spec": {"hard": hard}}),
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range"}, "spec": {"limits": range}}),
    ])
    .await;
    let mut main = shell("main", "sleep 1");
    main["resources"]["limits"] = json!({"cpu": "1", "memory": "64Mi"});
    for mut object in in_modes(&shim_modes(), &pod_spec("Never", &[main])) {
        for (annotation, quantity) in
            [("proxyCPU", "10m"), ("proxyCPULimit", "2"), ("proxyMemory", "64Mi"), ("proxyMemoryLimit", "1Gi")]
        {
            object = annotated(object, &format!("sidecar.istio.io/{annotation}"), quantity);
        }
        ns.create_object(object).await;
    }
    for mode in shim_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert_eq!(PodView(&pod).shim_mode(), Some(mode));
    }
}

#[tokio::test]
async fn shim_gets_no_token() {
    let ns = &scenario("no-token", &[MESH, OPT_IN]).await;
    for mode in shim_modes() {
        let made = ns.dry_run(annotated(quick(), MODE_ANNOTATION, mode)).await;
        let containers = ["containers", "initContainers"].map(|list| made["spec"][list].as_array().cloned());
        let containers: Vec<Value> = containers.into_iter().flatten().flatten().collect();
        let has_token = |container: &Value| container["volumeMounts"].to_string().contains("kube-api-access");
        let of_shim = |container: &&Value| container["image"].as_str().is_some_and(|image| image.contains("/shim"));
        assert!(containers.iter().any(has_token), "{mode}: others have it");
        assert!(containers.iter().any(|container| of_shim(&container)), "{mode}");
        assert!(!containers.iter().filter(of_shim).any(has_token), "{mode}: {containers:?}");
    }
}
