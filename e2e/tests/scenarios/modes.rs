//! The modes in which the shim gets into a pod: each does what native does, and what only it can do.

use contract::names::{MODE_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubectl::kubectl;
use e2e::manifests::{NEEDS_PROXY, annotated, in_modes, job, pod, pod_spec, shell, with_memory};
use e2e::{PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::{
    PILOT_AGENT, as_root, ended_once_by_the_kubelet, shim_container, shim_modes, start_server, until_first_attempt,
};

/// Fails twice with 7, then succeeds. Each attempt needs the network, and ends with 99 without it.
const THIRD_ATTEMPT_SUCCEEDS: &str = "curl -sSf --max-time 10 http://web/ || exit 99
echo x >> /memory/attempts; test $(wc -l < /memory/attempts) -ge 3 || exit 7";

#[tokio::test]
async fn retry_has_the_network_in_each_mode() {
    let ns = &scenario("mode-retry", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    let spec = with_memory(pod_spec("OnFailure", &[shell("main", THIRD_ATTEMPT_SUCCEEDS), shell("short", "true")]));
    ns.create_objects(in_modes(&shim_modes(), &spec)).await;
    for mode in shim_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        let view = PodView(&pod);
        assert_eq!(view.shim_mode(), Some(mode));
        assert_eq!((view.restarts("main"), view.restarts(PROXY_CONTAINER)), (Some(2), Some(0)), "{mode}");
        let log = ns.logs(mode, shim_container(mode)).await;
        // Short attempts may go by between two looks of the shim.
        for line in ["awaited containers finished known-by=", "asked istio-proxy to quit"] {
            assert_eq!(log.matches(line).count(), 1, "{mode}: {line:?} in\n{log}");
        }
    }
}

#[tokio::test]
async fn job_that_is_retried_completes() {
    let ns = &scenario("on-failure", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    let spec = with_memory(pod_spec("OnFailure", &[shell("main", THIRD_ATTEMPT_SUCCEEDS)]));
    ns.create_object(job("lucky", &spec)).await;
    ns.until_complete("lucky").await;
    let pod = ns.pod_of_job("lucky").await;
    assert_eq!(PodView(&ns.pod(&pod).await).restarts("main"), Some(2));
}

#[tokio::test]
async fn exit_codes_are_kept_in_each_mode() {
    let ns = &scenario("mode-codes", &[MESH, OPT_IN]).await;
    // Kubernetes makes one dollar of two.
    let containers = [shell("fails", "exit 3"), shell("killed", "kill -9 $$$$"), shell("fine", "sleep 2")];
    ns.create_objects(in_modes(&shim_modes(), &pod_spec("Never", &containers))).await;
    for mode in shim_modes() {
        let pod = ns.until_ended(mode, "Failed").await;
        // The first process of a PID namespace cannot kill itself.
        let killed = if mode == "status" { 0 } else { 137 };
        for (container, code) in [("fails", 3), ("killed", killed), ("fine", 0), (PROXY_CONTAINER, 0)] {
            assert_eq!(PodView(&pod).exit_code(container), Some(code), "{mode} {container}");
        }
    }
}

#[tokio::test]
async fn payloads_that_share_no_pids_end() {
    let ns = &scenario("mode-apart", &[MESH, OPT_IN]).await;
    let payload = || {
        let main = shell("main", &format!("sleep 2; {NEEDS_PROXY}; [ $$$$ = 1 ]"));
        pod_spec("Never", &[main, shell("slow", &format!("sleep 5; {NEEDS_PROXY}"))])
    };
    let mut no_sharing = payload();
    no_sharing["shareProcessNamespace"] = json!(false);
    ns.create_object(pod("no-sharing", &no_sharing)).await;
    let mut nodes_pids = pod_spec("Never", &[shell("main", &format!("sleep 2; {NEEDS_PROXY}"))]);
    nodes_pids["hostPID"] = json!(true);
    ns.create_object(pod("nodes-pids", &nodes_pids)).await;
    ns.create_object(annotated(pod("asked", &payload()), MODE_ANNOTATION, "status")).await;
    // The image's own command: the shim's, which prints its version.
    let made = ns.dry_run(pod("no-command", &no_sharing)).await;
    let inits = made["spec"]["initContainers"].as_array().expect("it has the shim").clone();
    // Without native sidecars an init container copies the shim.
    let is_shim = |container: &&Value| container["name"].as_str().is_some_and(|name| name.starts_with(SHIM_CONTAINER));
    let shim = inits.iter().find(is_shim).expect("it has the shim");
    let mut no_command = no_sharing;
    no_command["containers"] = json!([{"name": "main", "image": shim["image"], "args": ["--version"]}]);
    ns.create_object(pod("no-command", &no_command)).await;
    for name in ["no-sharing", "nodes-pids", "asked", "no-command"] {
        let pod = ns.until_ended(name, "Succeeded").await;
        assert_eq!(PodView(&pod).shim_mode(), Some("status"), "{name}");
        let outcome = PodView(&pod).outcome().expect("the shim has ended");
        assert_eq!((outcome.known_by, outcome.asked), ("kubelet", PILOT_AGENT), "{name}");
    }
}

#[tokio::test]
async fn container_whose_image_is_changed_under_never_has_its_network_again() {
    let ns = &scenario("mode-image", &[MESH, OPT_IN]).await;
    // The first attempt is killed by the change, and the second one ends by itself.
    let spec = with_memory(pod_spec("Never", &[shell("main", &ended_once_by_the_kubelet())]));
    ns.create_objects(in_modes(&shim_modes(), &spec)).await;
    for mode in shim_modes() {
        until_first_attempt(ns, mode).await;
        // Any other image that is on the node and has curl.
        let image = PodView(&ns.pod(mode).await).image(PROXY_CONTAINER).map(str::to_owned);
        let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        kubectl(&["-n", ns.name(), "patch", "pod", mode, "--patch", &patch.to_string()]);
    }
    for mode in shim_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert_eq!(PodView(&pod).restarts("main"), Some(1), "{mode}");
    }
}

/// Returns a payload whose first attempt kills Envoy and fails; the next need the network.
fn envoy_killer() -> Value {
    let script = "[ -e /memory/once ] && exec curl -sSf --max-time 5 http://web/; touch /memory/once; until kill -9 $(pidof envoy); do sleep 0.1; done; sleep 3; exit 7";
    let mut spec = with_memory(pod_spec("OnFailure", &[as_root(shell("main", script))]));
    spec["shareProcessNamespace"] = json!(true);
    pod("one", &spec)
}

#[tokio::test]
async fn control_crashed_envoy_leaves_retries_offline() {
    let ns = &scenario("control-crash", &[MESH]).await;
    start_server(ns).await;
    ns.create_object(envoy_killer()).await;
    ns.pod_until("one", "two retries", |pod| (PodView(pod).restarts("main") >= Some(3)).then_some(())).await;
    let pod = ns.pod("one").await;
    assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(0), "pilot-agent ended with 0, and stays ended");
    assert_eq!(PodView(&pod).restarts(PROXY_CONTAINER), Some(0));
}

#[tokio::test]
async fn crashed_envoy_is_restarted_in_mode_proxy() {
    let ns = &scenario("mode-crash", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    let pod = ns.run(annotated(envoy_killer(), MODE_ANNOTATION, "proxy"), "Succeeded").await;
    assert!(PodView(&pod).restarts(PROXY_CONTAINER) >= Some(1));
}

#[tokio::test]
async fn mode_istio_makes_the_proxy_a_native_sidecar() {
    let ns = &scenario("mode-istio", &[MESH, OPT_IN]).await;
    let object = pod("one", &pod_spec("Never", &[shell("main", "true")]));
    let pod = ns.run(annotated(object, MODE_ANNOTATION, "istio"), "Succeeded").await;
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()).expect("it has init containers");
    assert!(init.iter().any(|container| container.name == PROXY_CONTAINER));
    assert!(!PodView(&pod).has_shim());
}

#[tokio::test]
async fn mode_hold_and_mode_off_add_no_shim() {
    let ns = &scenario("mode-none", &[MESH, OPT_IN]).await;
    let has_hook = |pod: &Pod| {
        let containers = &pod.spec.as_ref().expect("a pod has a spec").containers;
        let proxy = containers.iter().find(|container| container.name == PROXY_CONTAINER).expect("it has a proxy");
        proxy.lifecycle.is_some()
    };
    for (mode, held) in [("hold", true), ("off", false)] {
        let object = annotated(pod(mode, &pod_spec("Never", &[shell("main", "true")])), MODE_ANNOTATION, mode);
        let admitted: Pod = serde_json::from_value(ns.dry_run(object).await).expect("it is a pod");
        assert_eq!((has_hook(&admitted), PodView(&admitted).shim_mode()), (held, None), "{mode}");
    }
}
