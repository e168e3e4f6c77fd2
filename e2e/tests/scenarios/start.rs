//! Payloads that need the mesh at their first instruction.

use contract::names::ISTIO_INJECT;
use e2e::clients::{asks_status, greets_by_each_address, host_of, output_of, output_of_script, until_said};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{GREETING, annotated, container, deployment, pod, pod_spec, service, shell, strict};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

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

/// Returns a pod, or a Deployment, that its label has in the mesh or not.
fn in_mesh(mut object: Value, is_in: &str) -> Value {
    let pod = if object["kind"] == "Pod" { &mut object } else { &mut object["spec"]["template"] };
    pod["metadata"]["labels"][ISTIO_INJECT] = json!(is_in);
    object
}

/// Pods of one training connect to each other at ports that no Service declares, too: those of NCCL and gloo.
#[tokio::test]
async fn pods_reach_declared_ports_only_of_each_other_in_a_strict_mesh() {
    let ns = &scenario("ports", &[MESH, OPT_IN]).await;
    ns.create_object(strict()).await;
    for (name, is_in, is_reached) in [("inside", "true", false), ("outside", "false", true)] {
        let mut serve = shell("web", "httpd -p 8080 -h /www && exec httpd -f -p 9090 -h /www");
        serve["readinessProbe"] = json!({"httpGet": {"path": "/", "port": 9090}, "periodSeconds": 1});
        let mut headless = service(name, 8080, 8080);
        headless["spec"]["clusterIP"] = json!("None");
        ns.create_objects([headless, in_mesh(deployment(name, &pod_spec("Always", &[serve])), is_in)]).await;
        let label = format!("app={name}");
        ns.until_a_pod(&label, "readiness", |pod| pod.is_ready("web")).await;
        let address = ns.pod_with(&label).await.status.and_then(|status| status.pod_ip).expect("it runs");
        let host = host_of(&address);
        let declared = until_said(&asks_status(&format!("{name}:8080")), "200");
        let script = format!("{declared}; echo; {}", asks_status(&format!("{host}:9090")));
        let client = pod(&format!("asks-{name}"), &pod_spec("Never", &[shell("main", &script)]));
        let said = output_of(ns, in_mesh(client, is_in)).await;
        let (declared, other) = said.split_once('\n').unwrap_or_else(|| panic!("{name}: {said}"));
        assert_eq!((declared, other == "200"), ("200", is_reached), "{name}: {other}");
    }
}
