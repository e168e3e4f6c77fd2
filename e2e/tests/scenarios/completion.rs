//! Pods that are to complete, and what waits for what.

use std::time::Duration;

use contract::names::{PROXY_CONFIG_ANNOTATION, PROXY_CONTAINER, WAIT_FOR_ANNOTATION};
use e2e::cluster::{LEGACY_OPT_IN, MESH, OPT_IN, RESTRICTED, told_code};
use e2e::kubectl::kubectl;
use e2e::manifests::{NEEDS_PROXY, annotated, job, pod, pod_spec, restricted, shell};
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::Value;

use crate::{PILOT_AGENT, default_mode, shim_container, start_server};

fn hello() -> Value {
    job("hello", &pod_spec("Never", &[shell("main", "echo started; sleep 2; echo ended")]))
}

#[tokio::test]
async fn control_job_in_the_mesh_hangs_until_readmes_command() {
    let ns = &scenario("control-job", &[MESH]).await;
    ns.create_object(hello()).await;
    let pod = ns.pod_of_job("hello").await;
    ns.pod_until(&pod, "the payload's end", |pod| PodView(pod).is_stuck("main").then_some(())).await;
    ns.holds_for(Duration::from_secs(20), "payload ended, proxy ready, Job not complete", async || {
        PodView(&ns.pod(&pod).await).is_stuck("main") && !has_condition(&ns.get(&hello()).await, "Complete")
    })
    .await;
    let readme = include_str!("../../../README.md");
    let command = readme
        .lines()
        .find_map(|line| line.strip_prefix("kubectl exec -n NAMESPACE POD "))
        .expect("README frees a pod");
    let words: Vec<_> = ["-n", ns.name(), "exec", &pod].into_iter().chain(command.split(' ')).collect();
    kubectl(&words);
    ns.until_complete("hello").await;
}

async fn job_completes(ns: &Namespace) {
    ns.create_object(hello()).await;
    ns.until_complete("hello").await;
    let name = ns.pod_of_job("hello").await;
    let pod = ns.pod(&name).await;
    let view = PodView(&pod);
    assert_eq!(view.phase(), "Succeeded");
    assert_eq!(view.exit_code(PROXY_CONTAINER), Some(0));
    let shim = shim_container(PodView(&pod).shim_mode().expect("it has a shim"));
    assert_eq!((view.exit_code(shim), view.restarts(shim)), (Some(0), Some(0)));
    // The exit, or on a busy node the kubelet: e2e/tests/exclusive/start_error.rs.
    let outcome = view.outcome().expect("the shim has ended");
    assert_eq!(outcome.asked, PILOT_AGENT);
    let known = (outcome.codes, outcome.known_by);
    let code = format!("main={}", told_code(0));
    assert!([(&*code, "exit"), ("main=?", "kubelet")].contains(&known), "{known:?}");
}

#[tokio::test]
async fn job_completes_with_the_label() {
    job_completes(&scenario("job", &[MESH, OPT_IN]).await).await;
}

#[tokio::test]
async fn job_completes_with_the_legacy_label() {
    job_completes(&scenario("legacy", &[MESH, LEGACY_OPT_IN]).await).await;
}

#[tokio::test]
async fn failed_payload_under_never_fails_the_pod() {
    let ns = &scenario("never", &[MESH, OPT_IN]).await;
    let pod = ns.run(pod("fails", &pod_spec("Never", &[shell("main", "exit 3")])), "Failed").await;
    assert_eq!(PodView(&pod).exit_code("main"), Some(3));
    assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(0));
    assert_eq!(PodView(&pod).outcome().map(|outcome| outcome.asked), Some(PILOT_AGENT));
}

#[tokio::test]
async fn proxy_outlives_every_container() {
    let ns = &scenario("outlives", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    let long = shell("long", "sleep 8; curl -sSf http://web/");
    let pod = ns.run(pod("two", &pod_spec("Never", &[shell("short", "sleep 1"), long])), "Succeeded").await;
    let ended_at = |container| PodView(&pod).ended_at(container).cloned().expect("it has ended");
    assert!(ended_at("short") < ended_at("long"));
}

#[tokio::test]
async fn wait_for_ignores_the_other_containers() {
    let ns = &scenario("wait-for", &[MESH, OPT_IN]).await;
    let main = format!("sleep 1; {NEEDS_PROXY}");
    // Ends once the proxy no longer serves.
    let shipper = format!("while ({NEEDS_PROXY}); do sleep 1; done");
    let spec = pod_spec("Never", &[shell("main", &main), shell("shipper", &shipper)]);
    let pod = ns.run(annotated(pod("two", &spec), WAIT_FOR_ANNOTATION, "main"), "Succeeded").await;
    assert_eq!(PodView(&pod).restarts_of_shim(), 0);
}

#[tokio::test]
async fn restricted_namespace_admits_the_shim() {
    let ns = &scenario("restricted", &[MESH, OPT_IN, RESTRICTED]).await;
    let careful = restricted(pod("careful", &pod_spec("Never", &[shell("main", "id -u")])));
    // Istio's own init container needs capabilities that restricted forbids; without redirection there is none, and
    // then Envoy, as an ordinary user, must be told to leave ports below 1024 alone.
    let config = "interceptionMode: NONE\nproxyMetadata:\n  ISTIO_META_UNPRIVILEGED_POD: \"true\" # not root\n";
    let pod = ns.run(annotated(careful, PROXY_CONFIG_ANNOTATION, config), "Succeeded").await;
    assert_eq!(PodView(&pod).shim_mode(), Some(default_mode()));
    let config_now = PodView(&pod).annotation(PROXY_CONFIG_ANNOTATION).unwrap_or_default();
    assert_eq!(config_now, format!("{config}holdApplicationUntilProxyStarts: true\n"));
}
