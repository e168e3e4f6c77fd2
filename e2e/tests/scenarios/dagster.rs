//! An op of Dagster that is a Job of Kubernetes, run by Dagster itself.

use std::process::Output;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{GREETING, payload_image};
use e2e::{Namespace, PodView, scenario};

use crate::{clients, start_server};

/// Selects the pods of Dagster's Jobs.
const PODS: &str = "app.kubernetes.io/name=dagster";

/// Runs the job of `clients/dagster` with this script, and waits for it so many seconds.
async fn execute(ns: &Namespace, script: &str, timeout: u32) -> Output {
    start_server(ns).await;
    let variables =
        vec![("PAYLOAD_IMAGE", payload_image()), ("SCRIPT", script.to_owned()), ("TIMEOUT", timeout.to_string())];
    clients::run(ns, "dagster", variables).await
}

#[tokio::test]
async fn op_of_dagster_succeeds_with_its_pod() {
    let ns = &scenario("dagster", &[MESH, OPT_IN]).await;
    let output = execute(ns, "curl -sSf http://web/", 120).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pod = ns.pods_with(PODS).await.remove(0);
    let view = PodView(&pod);
    assert_eq!((view.phase(), view.exit_code(PROXY_CONTAINER)), ("Succeeded", Some(0)));
    assert!(ns.logs(&pod.metadata.name.expect("it has a name"), "dagster").await.contains(GREETING));
}

#[tokio::test]
async fn control_op_of_dagster_in_the_mesh_alone_waits_for_its_pod_in_vain() {
    let ns = &scenario("control-dagster", &[MESH]).await;
    let output = execute(ns, "until curl -sSf http://web/; do sleep 1; done", 40).await;
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pod = ns.pods_with(PODS).await.remove(0);
    let view = PodView(&pod);
    assert_eq!((view.phase(), view.exit_code("dagster")), ("Running", Some(0)), "{}", view.in_a_line());
}
