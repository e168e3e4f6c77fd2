//! Payloads whose liveness probe fails. The kubelet restarts such a container under `OnFailure` whatever its exit code is.

use contract::names::{MODE_ANNOTATION, PROXY_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{NEEDS_PROXY, annotated, pod, pod_spec, shell, with_default_grace, with_memory};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{shim_modes, start_server};

/// Returns a pod whose first attempt never gets healthy, and answers SIGTERM with 0. Its second attempt runs this.
fn hangs_once(name: &str, second_attempt: &str) -> Value {
    let script = format!(
        "if [ ! -e /memory/attempted ]; then touch /memory/attempted; trap 'kill $!; touch /memory/ended; exit 0' TERM; sleep 86400 & wait $!; fi
touch /memory/healthy
[ -e /memory/ended ] || exit 98
{second_attempt}"
    );
    let mut main = shell("main", &script);
    main["livenessProbe"] = json!({
        "exec": {"command": ["test", "-e", "/memory/healthy"]},
        "initialDelaySeconds": 2, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10,
    });
    pod(name, &with_default_grace(with_memory(pod_spec("OnFailure", &[main]))))
}

/// Asserts that the pod succeeded at its second attempt, which succeeds only after one that exited with 0.
async fn succeeds_after_an_attempt_that_exited_with_0(ns: &Namespace, name: &str) {
    assert_eq!(ns.final_phase(name).await, "Succeeded", "{name}");
    let pod = ns.pod(name).await;
    assert_eq!(PodView(&pod).restarts("main"), Some(1), "{name}");
}

#[tokio::test]
async fn control_failed_liveness_probe_restarts_exit_0() {
    scenario("control-liveness", &[], async |ns: &Namespace| {
        ns.create_object(hangs_once("one", "true")).await;
        succeeds_after_an_attempt_that_exited_with_0(ns, "one").await;
    })
    .await;
}

#[tokio::test]
async fn retry_after_a_failed_liveness_probe_keeps_the_proxy() {
    scenario("liveness", &[MESH, OPT_IN], async |ns: &Namespace| {
        start_server(ns).await;
        // Long enough for a proxy to go that was asked to quit at the first attempt's end.
        let calls = "for n in 1 2 3 4 5 6; do curl -sSf --max-time 5 http://web/ || exit 99; sleep 1; done";
        let needs_the_mesh = format!("{calls}; {NEEDS_PROXY}");
        for mode in shim_modes() {
            ns.create_object(annotated(hangs_once(mode, &needs_the_mesh), MODE_ANNOTATION, mode)).await;
        }
        for mode in shim_modes() {
            succeeds_after_an_attempt_that_exited_with_0(ns, mode).await;
            assert_eq!(PodView(&ns.pod(mode).await).restarts(PROXY_CONTAINER), Some(0), "{mode}");
        }
    })
    .await;
}
