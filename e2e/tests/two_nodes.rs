//! Proxies beside the pods of two nodes. The second is a kubelet in namespaces of this machine: the component `second-node`.

use std::time::Duration;

use e2e::clients::{greets, until_said};
use e2e::cluster::BESIDE;
use e2e::command::{printed, run};
use e2e::install_methods::BINARY;
use e2e::kubectl::{kubectl, wait_for_rollout};
use e2e::manifests::{GREETING, deployment, job, payload_image, pod_spec, server, shell};
use e2e::node::{self, NextImage};
use e2e::{Namespace, PodView, scenario};
use kube::ResourceExt;
use serde_json::{Value, json};

const NODES: [&str; 2] = ["node1", "node2"];
const AGENTS: [&str; 4] = ["-n", "istio-aux-node", "--selector", "app.kubernetes.io/name=istio-aux-node"];

/// Has a Deployment's or Job's pods run on a node.
fn on(node: &str, mut workload: Value) -> Value {
    let spec = &mut workload["spec"]["template"]["spec"];
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    spec["tolerations"] = json!([{"key": "istio-aux.io/second-node", "operator": "Exists"}]);
    workload
}

/// Creates a server, which takes mutual TLS only, on one node, and a client on the other. Both have proxies beside them.
async fn server_and_client(ns: &Namespace, [of_server, of_client]: [&str; 2]) {
    let objects = server().into_iter().map(|object| match object["kind"].as_str() {
        Some("Deployment") => on(of_server, object),
        _ => object,
    });
    ns.create_objects(objects).await;
    let spec = pod_spec("Always", &[shell("main", "sleep 86400")]);
    ns.create_object(on(of_client, deployment("client", &spec))).await;
    for (name, node) in [("web", of_server), ("client", of_client)] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
        let spec = ns.pod_with(&format!("app={name}")).await.spec.expect("a pod has a spec");
        assert_eq!(spec.node_name.as_deref(), Some(node), "{name}");
        assert_eq!(spec.runtime_class_name.as_deref(), Some("istio-aux"), "{name}");
    }
}

async fn assert_heard(ns: &Namespace, when: &str) {
    let client = ns.pod_with("app=client").await.name_any();
    let said = ns.exec(&client, "main", &["sh", "-c", &until_said(&greets("web"), "*200")]);
    assert_eq!(said, format!("{GREETING}\n 200"), "{when}");
}

/// Returns a Job on a node that asks the server.
fn asks(name: &str, node: &str) -> Value {
    on(node, job(name, &pod_spec("Never", &[shell("main", &until_said(&greets("web"), "*200"))])))
}

async fn assert_completes(ns: &Namespace, name: &str) {
    ns.until_complete(name).await;
    assert_eq!(ns.logs(&ns.pod_of_job(name).await, "main").await, format!("{GREETING}\n 200"), "{name}");
}

/// Returns the images and states of a namespace's proxies on a node, as the command line prints them, sorted.
fn proxies_on(ns: &Namespace, node: &str) -> Vec<(String, String)> {
    let printed = printed(&run(BINARY, &["proxies", "--node", node, "-o", "json"], ""));
    let all: Value = serde_json::from_str(&printed).expect("it is JSON");
    let prefix = format!("{}/", ns.name());
    let proxies = all["proxies"].as_array().into_iter().flatten();
    let of_namespace = proxies.filter(|proxy| proxy["pod"].as_str().is_some_and(|pod| pod.starts_with(&prefix)));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<_> = of_namespace.map(|proxy| (text(&proxy["image"]), text(&proxy["state"]))).collect();
    found.sort_unstable();
    found
}

fn running(image: &str) -> Vec<(String, String)> {
    vec![(node::root_of(image), "running".to_owned())]
}

async fn until_proxies(ns: &Namespace, node: &str, expected: &[(String, String)]) {
    let what = format!("{expected:?} on {node}");
    ns.until(&what, async || (proxies_on(ns, node) == expected).then_some(())).await;
}

/// Returns name, node and readiness of the agents' pods.
fn agents() -> Vec<(String, String, bool)> {
    let list = kubectl(&[&["get", "pods", "-o", "json"], &AGENTS[..]].concat());
    let list: Value = serde_json::from_str(&list).expect("it is JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = list["items"].as_array().into_iter().flatten();
    let agents = pods.map(|pod| {
        let is_ready = pod["status"]["containerStatuses"][0]["ready"] == true;
        (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]), is_ready)
    });
    agents.collect()
}

#[tokio::test]
async fn pods_of_each_node_reach_a_strict_server_of_the_other() {
    for nodes in [NODES, ["node2", "node1"]] {
        let [_, of_client] = nodes;
        let ns = &scenario("two-nodes", &[BESIDE]).await;
        server_and_client(ns, nodes).await;
        assert_heard(ns, of_client).await;
        for node in NODES {
            assert_eq!(proxies_on(ns, node), running(&node::proxy_image()), "of {node}");
        }
        ns.create_object(asks("ends", of_client)).await;
        assert_completes(ns, "ends").await;

        // The control: without its proxy a pod of that node is refused.
        let script = format!("{} || true", greets("web"));
        let mut outside = on(of_client, job("outside", &pod_spec("Never", &[shell("main", &script)])));
        outside["spec"]["template"]["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "false"});
        ns.create_object(outside).await;
        ns.until_complete("outside").await;
        let said = ns.logs(&ns.pod_of_job("outside").await, "main").await;
        assert!(said.trim_end().ends_with("000"), "STRICT ends the connection: {said}");
    }
}

#[tokio::test]
async fn absent_agent_of_a_node_delays_new_pods_of_that_node_only() {
    let ns = &scenario("two-nodes-agent-away", &[BESIDE]).await;
    server_and_client(ns, NODES).await;
    node::select_nodes(r#"{"kubernetes.io/hostname": "node1"}"#);
    let end = node::Restored(|| node::select_nodes(r#"{"kubernetes.io/hostname": null}"#));
    ns.until("no agent on node2", async || agents().iter().all(|(_, node, _)| node == "node1").then_some(())).await;
    assert_heard(ns, "without the client's agent").await;
    ns.create_objects([asks("waits", "node2"), asks("ends", "node1")]).await;
    assert_completes(ns, "ends").await;
    let pod = ns.pod_of_job("waits").await;
    let waits = async || PodView(&ns.pod(&pod).await).phase() == "Pending";
    ns.holds_for(Duration::from_secs(5), "the pod waits", waits).await;

    drop(end);
    assert_completes(ns, "waits").await;
}

#[tokio::test]
async fn rollout_stops_at_the_first_node_whose_proxies_cannot_be_upgraded() {
    let ns = &scenario("two-nodes-rollout", &[BESIDE]).await;
    server_and_client(ns, NODES).await;
    let serving = running(&node::proxy_image());
    // It has no pilot-agent.
    let next = NextImage::begin(payload_image());
    let is_said = |agent: &str| node::unready_in(agent).is_some_and(|reason| reason.contains("cannot be upgraded"));
    let failed = async || agents().into_iter().find(|(name, ..)| is_said(name));
    let (_, stopped_at, _) = ns.until("an upgrade that failed", failed).await;
    let stops = async || (node::daemon_set(".status.numberUnavailable") == "1").then_some(());
    ns.until("a rollout that waits", stops).await;
    assert_eq!(node::daemon_set(".status.updatedNumberScheduled"), "1", "the other node has the agent that served");
    let is_ready: Vec<_> = agents().into_iter().map(|(_, node, is_ready)| (node != stopped_at) == is_ready).collect();
    assert_eq!(is_ready, [true, true], "all but the agent of {stopped_at} are ready");
    for node in NODES {
        assert_eq!(proxies_on(ns, node), serving, "of {node}");
    }
    assert_heard(ns, "while the rollout waits").await;
    let other = NODES.into_iter().find(|node| *node != stopped_at).expect("there are two");
    ns.create_object(asks("starts", other)).await;
    assert_completes(ns, "starts").await;

    // The image that served: the rollout ends.
    drop(next);
    for node in NODES {
        until_proxies(ns, node, &serving).await;
    }
    assert_heard(ns, "after the rollback").await;
}

#[tokio::test]
async fn canary_by_on_delete_upgrades_the_chosen_node_only() {
    let ns = &scenario("two-nodes-canary", &[BESIDE]).await;
    server_and_client(ns, NODES).await;
    let before = node::proxy_image();
    let next = format!("{before}-next");
    node::tag_on_each_node(&before, &next);
    let end = node::Restored(|| node::set_value(&format!("updateStrategy.type=RollingUpdate,proxyImage={before}")));
    node::set_value(&format!("updateStrategy.type=OnDelete,proxyImage={next}"));
    let replace_agent_of = async |wanted: &str| {
        let agent = agents().into_iter().find(|(_, node, _)| node == wanted).expect("it has an agent").0;
        kubectl(&["-n", "istio-aux-node", "delete", "pod", &agent]);
        let is_next = |(name, node, is_ready): &(String, String, bool)| *name != agent && node == wanted && *is_ready;
        ns.until("the next agent", async || agents().iter().any(is_next).then_some(())).await;
    };
    replace_agent_of("node2").await;
    until_proxies(ns, "node2", &running(&next)).await;
    assert_heard(ns, "with two images").await;
    assert_eq!(proxies_on(ns, "node1"), running(&before), "of the node that was not chosen");
    replace_agent_of("node1").await;
    until_proxies(ns, "node1", &running(&next)).await;
    assert_heard(ns, "with the next image").await;

    drop(end);
    for node in NODES {
        until_proxies(ns, node, &running(&before)).await;
    }
}
