//! Container restart rules (KEP-5307), and those that start every container again (KEP-5532). Kubernetes 1.36 and later.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{in_modes, pod_spec, shell, with_init, with_memory, with_rule};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{shim_modes, start_server};

const NEEDS_WEB: &str = "curl -sSf --max-time 10 http://web/ || exit 99";

/// Runs a pod in each mode. Asserts that it succeeds, and that `restarts` of its containers are these.
async fn run_in_each_mode(ns: &Namespace, spec: &Value, restarts: &[(&str, i32)]) {
    ns.create_objects(in_modes(&shim_modes(), spec)).await;
    for mode in shim_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        let view = PodView(&pod);
        assert_eq!(view.shim_mode(), Some(mode));
        for (container, count) in restarts {
            assert_eq!(view.restarts(container), Some(*count), "{mode}: {}", view.in_a_line());
        }
        let outcome = view.outcome().unwrap_or_else(|| panic!("{mode}: the shim has ended: {}", view.in_a_line()));
        assert_eq!(outcome.known_by, "kubelet", "{mode}: the end of a container with rules is the kubelet's to tell");
    }
}

#[tokio::test]
async fn container_that_a_rule_restarts_has_its_network() {
    let ns = &scenario("rule-restart", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    let script = format!("{NEEDS_WEB}; echo x >>/memory/attempts; test $(wc -l </memory/attempts) -ge 3 || exit 42");
    let main = with_rule(shell("main", &script), "Restart", 42);
    run_in_each_mode(ns, &with_memory(pod_spec("Never", &[main])), &[("main", 2), (PROXY_CONTAINER, 0)]).await;
}

#[tokio::test]
async fn pod_that_a_container_starts_again_has_its_network() {
    let ns = &scenario("rule-all", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    let script = format!("{NEEDS_WEB}; [ -e /memory/once ] || {{ touch /memory/once; exit 88; }}");
    let main = with_rule(shell("main", &script), "RestartAllContainers", 88);
    let other = shell("other", &format!("sleep 2; {NEEDS_WEB}"));
    let restarts = [("main", 1), ("other", 1), (PROXY_CONTAINER, 1)];
    run_in_each_mode(ns, &with_memory(pod_spec("Never", &[main, other])), &restarts).await;
}

#[tokio::test]
async fn pod_that_a_native_sidecar_starts_again_has_its_network() {
    let ns = &scenario("rule-watcher", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    // The example of Kubernetes' documentation: a watcher that wants another attempt while main runs.
    let watch = "trap 'kill $!; exit 0' TERM; [ -e /memory/once ] || { until [ -e /memory/started ]; do sleep 0.2; done; touch /memory/once; exit 88; }; sleep 86400 & wait $!";
    let mut watcher = shell("watcher", watch);
    watcher["restartPolicy"] = json!("Always");
    let main = shell("main", &format!("{NEEDS_WEB}; touch /memory/started; sleep 5; {NEEDS_WEB}"));
    let mut spec = with_memory(pod_spec("Never", &[main]));
    watcher["volumeMounts"] = spec["containers"][0]["volumeMounts"].clone();
    spec = with_init(spec, &[with_rule(watcher, "RestartAllContainers", 88)]);
    run_in_each_mode(ns, &spec, &[("main", 1), (PROXY_CONTAINER, 1)]).await;
}
