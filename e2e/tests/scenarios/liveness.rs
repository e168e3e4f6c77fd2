//! Payloads whose liveness probe fails. The kubelet restarts such a container under `OnFailure` whatever its exit code is.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{NEEDS_PROXY, in_modes, pod, pod_spec, shell, with_default_grace, with_memory};
use e2e::{Namespace, PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::{shim_modes, start_server};

/// Returns the specification of a pod whose first attempt never gets healthy, and answers SIGTERM with 0. A later attempt
/// runs this.
fn hangs_once(later_attempt: &str) -> Value {
    let script = format!(
        "if [ ! -e /memory/attempted ]; then touch /memory/attempted; trap 'kill $!; touch /memory/ended; exit 0' TERM; sleep 86400 & wait $!; fi
touch /memory/healthy
[ -e /memory/ended ] || exit 98
{later_attempt}"
    );
    let mut main = shell("main", &script);
    main["livenessProbe"] = json!({
        "exec": {"command": ["test", "-e", "/memory/healthy"]},
        "initialDelaySeconds": 2, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10,
    });
    with_default_grace(with_memory(pod_spec("OnFailure", &[main])))
}

/// Asserts that the pod succeeded at a later attempt, which succeeds only after one that exited with 0. Returns the pod.
///
/// That is the second, unless it ends while its probe runs: the end kills the probe, which the kubelet takes for a failed one, and
/// restarts the container once more.
async fn succeeds_after_an_attempt_that_exited_with_0(ns: &Namespace, name: &str) -> Pod {
    let pod = ns.until_ended(name, "Succeeded").await;
    assert!(PodView(&pod).restarts("main") >= Some(1), "{}", PodView(&pod).in_a_line());
    pod
}

#[tokio::test]
async fn control_failed_liveness_probe_restarts_exit_0() {
    let ns = &scenario("control-liveness", &[]).await;
    ns.create_object(pod("one", &hangs_once("true"))).await;
    succeeds_after_an_attempt_that_exited_with_0(ns, "one").await;
}

#[tokio::test]
async fn retry_after_a_failed_liveness_probe_keeps_the_proxy() {
    let ns = &scenario("liveness", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    // Long enough for a proxy to go that was asked to quit at the first attempt's end.
    let calls = "for n in 1 2 3 4 5 6; do curl -sSf --max-time 5 http://web/ || exit 99; sleep 1; done";
    let needs_the_mesh = format!("{calls}; {NEEDS_PROXY}");
    ns.create_objects(in_modes(&shim_modes(), &hangs_once(&needs_the_mesh))).await;
    for mode in shim_modes() {
        let pod = succeeds_after_an_attempt_that_exited_with_0(ns, mode).await;
        assert_eq!(PodView(&pod).restarts(PROXY_CONTAINER), Some(0), "{mode}");
    }
}
