//! Payloads that need the mesh at their first instruction.

use e2e::clients::{greets_by_each_address, output_of_script};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{GREETING, annotated, container, pod, pod_spec};
use e2e::{Namespace, PodView, scenario};

use crate::start_server;

const FIRST_COMMAND: &[&str] = &["curl", "-sSf", "--max-time", "10", "-D", "/dev/stderr", "http://web/"];

const PODS: usize = 5;

/// Runs pods whose proxies have so little CPU that they start after the payload, unless that is held. Returns each payload's exit code
/// and log.
async fn first_instructions(ns: &Namespace) -> Vec<(i32, String)> {
    start_server(ns).await;
    let names: Vec<String> = (0..PODS).map(|n| format!("first-{n}")).collect();
    for name in &names {
        let object = pod(name, &pod_spec("Never", &[container("main", FIRST_COMMAND)]));
        ns.create_object(annotated(object, "sidecar.istio.io/proxyCPULimit", "100m")).await;
    }
    let mut ends = Vec::new();
    for name in &names {
        let code = ns.pod_until(name, "the payload's end", |pod| PodView(pod).exit_code("main")).await;
        ends.push((code, ns.logs(name, "main").await));
    }
    ends
}

#[tokio::test]
async fn first_instruction_reaches_the_mesh() {
    let ns = &scenario("start", &[MESH, OPT_IN]).await;
    for (code, log) in first_instructions(ns).await {
        assert!(code == 0 && log.contains(GREETING), "{code}: {log}");
        assert!(log.contains("server: envoy"), "the answer did not come through Envoy:\n{log}");
    }
}

#[tokio::test]
async fn service_is_reached_by_its_address_of_each_family() {
    let ns = &scenario("families", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    let (script, expected) = greets_by_each_address(ns).await;
    assert_eq!(output_of_script(ns, "one", &script).await, expected);
}

#[tokio::test]
async fn control_first_instruction_in_the_mesh_alone_fails() {
    let ns = &scenario("control-start", &[MESH]).await;
    let ends = first_instructions(ns).await;
    assert!(ends.iter().all(|(code, _)| *code != 0), "{ends:?}");
}
