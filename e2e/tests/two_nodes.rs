//! Proxies beside the pods of two nodes. The second is a kubelet in namespaces of this machine: the component `second-node`.

use e2e::clients::{assert_heard, assert_still_heard, greets, until_said};
use e2e::cluster::{NODE_PROXY, restart};
use e2e::command::{in_background, printed, run};
use e2e::install_methods::BINARY;
use e2e::kubectl::{kubectl, wait_for_rollout};
use e2e::manifests::{
    GREETING, account, deployment, each_by_its_connection, job, payload_image, pod_spec, server, shell, with_memory,
};
use e2e::node::{self, NextImage};
use e2e::{Namespace, PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

const NODES: [&str; 2] = ["node1", "node2"];
const AGENTS: [&str; 4] = ["-n", "istio-aux-node", "--selector", "app.kubernetes.io/name=istio-aux-node"];

/// Asks the server again and again, and notes the statuses.
const ASKS: &str = r"until [ -e /memory/stop ]; do
  curl -s -o /dev/null -w '%{http_code}\n' --max-time 20 http://web/ >>/memory/statuses
done";

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
    let spec = with_memory(pod_spec("Always", &[shell("main", "sleep 86400")]));
    ns.create_object(on(of_client, deployment("client", &spec))).await;
    for (name, node) in [("web", of_server), ("client", of_client)] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
        let spec = ns.pod_with(&format!("app={name}")).await.spec.expect("a pod has a spec");
        assert_eq!(spec.node_name.as_deref(), Some(node), "{name}");
        assert_eq!(spec.runtime_class_name.as_deref(), Some("istio-aux"), "{name}");
    }
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
        let ns = &scenario("two-nodes", &[NODE_PROXY]).await;
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
    let ns = &scenario("two-nodes-agent-away", &[NODE_PROXY]).await;
    server_and_client(ns, NODES).await;
    assert_heard(ns, "before").await;
    node::select_nodes(r#"{"kubernetes.io/hostname": "node1"}"#);
    let end = node::Restored(|| node::select_nodes(r#"{"kubernetes.io/hostname": null}"#));
    ns.until("no agent on node2", async || agents().iter().all(|(_, node, _)| node == "node1").then_some(())).await;
    assert_still_heard(ns, "without the client's agent").await;
    ns.create_objects([asks("waits", "node2"), asks("ends", "node1")]).await;
    assert_completes(ns, "ends").await;
    let pod = ns.pod_of_job("waits").await;
    assert_eq!(PodView(&ns.pod(&pod).await).phase(), "Pending");

    drop(end);
    assert_completes(ns, "waits").await;
}

#[tokio::test]
async fn rollout_stops_at_the_first_node_whose_proxies_cannot_be_upgraded() {
    let ns = &scenario("two-nodes-rollout", &[NODE_PROXY]).await;
    server_and_client(ns, NODES).await;
    assert_heard(ns, "before").await;
    let serving = running(&node::proxy_image());
    // It has no pilot-agent.
    let next = NextImage::begin(payload_image());
    let is_said = |agent: &str| node::unready_in(agent).is_some_and(|reason| reason.contains("cannot be upgraded"));
    let failed = async || agents().into_iter().find(|(name, ..)| is_said(name));
    let (_, stopped_at, _) = ns.until("an upgrade that failed", failed).await;
    let said = ns.until_event("Pod", "ProxyNotUpgraded").await;
    assert!(said.contains("goes on"), "{said}");
    let stops = async || (node::daemon_set(".status.numberUnavailable") == "1").then_some(());
    ns.until("a rollout that waits", stops).await;
    assert_eq!(node::daemon_set(".status.updatedNumberScheduled"), "1", "the other node has the agent that served");
    let is_ready: Vec<_> = agents().into_iter().map(|(_, node, is_ready)| (node != stopped_at) == is_ready).collect();
    assert_eq!(is_ready, [true, true], "all but the agent of {stopped_at} are ready");
    for node in NODES {
        assert_eq!(proxies_on(ns, node), serving, "of {node}");
    }
    assert_still_heard(ns, "while the rollout waits").await;
    let other = NODES.into_iter().find(|node| *node != stopped_at).expect("there are two");
    ns.create_object(asks("starts", other)).await;
    assert_completes(ns, "starts").await;

    // The image that served: the rollout ends.
    drop(next);
    for node in NODES {
        until_proxies(ns, node, &serving).await;
    }
    assert_still_heard(ns, "after the rollback").await;
}

#[tokio::test]
async fn canary_by_on_delete_upgrades_the_chosen_node_only() {
    let ns = &scenario("two-nodes-canary", &[NODE_PROXY]).await;
    server_and_client(ns, NODES).await;
    ns.create_objects(each_by_its_connection("web")).await;
    assert_heard(ns, "before").await;
    let before = node::proxy_image();
    let next = format!("{before}-next");
    node::tag_on_each_node(&before, &next);
    let end = node::Restored(|| node::set_value(&format!("updateStrategy.type=RollingUpdate,proxyImage={before}")));
    node::set_value(&format!("updateStrategy.type=OnDelete,proxyImage={next}"));
    let client = ns.pod_with("app=client").await.name_any();
    let in_client = |script: &str| ns.run_script(&client, script);
    in_client(&format!("({ASKS}) >/dev/null 2>&1 &"));
    kubectl(&["-n", "istio-aux-node", "delete", "pod", "--field-selector", "spec.nodeName=node2"]);
    let is_next = |(_, node, is_ready): &(String, String, bool)| node == "node2" && *is_ready;
    ns.until("the next agent", async || agents().iter().any(is_next).then_some(())).await;
    until_proxies(ns, "node2", &running(&next)).await;
    assert_still_heard(ns, "with two images").await;
    assert_eq!(proxies_on(ns, "node1"), running(&before), "of the node that was not chosen");
    in_background(|| node::roll_out("updateStrategy.type=RollingUpdate")).await;
    until_proxies(ns, "node1", &running(&next)).await;
    assert_still_heard(ns, "with the next image").await;

    drop(end);
    for node in NODES {
        until_proxies(ns, node, &running(&before)).await;
    }
    let statuses = in_client("touch /memory/stop; cat /memory/statuses");
    let (served, others): (Vec<_>, Vec<_>) = statuses.lines().partition(|status| *status == "200");
    assert!(!served.is_empty() && others.is_empty(), "{} requests from node to node, {others:?}", served.len());
}

#[tokio::test]
async fn pods_of_a_daemon_set_wait_on_nodes_without_the_agent_unless_it_selects_the_agents() {
    let ns = &scenario("two-nodes-daemon-set", &[NODE_PROXY]).await;
    let _every_node = node::Restored(|| node::set_value(r"nodeSelector.kubernetes\.io/hostname=null"));
    in_background(|| node::roll_out(r"nodeSelector.kubernetes\.io/hostname=node1")).await;
    let spec = pod_spec("Always", &[shell("main", "sleep 86400")]);
    for (name, selector) in [("all", json!({})), ("selected", json!({"kubernetes.io/hostname": "node1"}))] {
        let mut object = deployment(name, &spec);
        object["kind"] = json!("DaemonSet");
        let spec = &mut object["spec"]["template"]["spec"];
        spec["nodeSelector"] = selector;
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        ns.create_object(object).await;
    }
    wait_for_rollout(ns.name(), "daemonset/selected");
    assert_eq!(ns.pods_with("app=selected").await.len(), 1);
    let waits = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
    };
    ns.until("a pod on node1, and one that waits", async || {
        let pods = ns.pods_with("app=all").await;
        let (waiting, others): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| waits(pod));
        (waiting.len() == 1 && others.len() == 1 && PodView(others[0]).is_ready("main")).then_some(())
    })
    .await;
}

/// Asks istiod for a certificate of an account of the namespace with an agent's token, and returns gRPC's status.
fn status_of_signing(ns: &Namespace, account: &str, agent: &str) -> String {
    let token = ["create", "token", "istio-aux-node", "-n", "istio-aux-node", "--audience=istio-ca"];
    let token = kubectl(&[&token[..], &["--bound-object-kind=Pod", "--bound-object-name", agent]].concat());
    let of_istio = |words: &[&str]| kubectl(&[&["get", "-n", "istio-system"], words].concat());
    let address = of_istio(&["service", "istiod", "-o", "jsonpath={.spec.clusterIP}"]);
    let root = of_istio(&["configmap", "istio-ca-root-cert", "-o", "jsonpath={.data.root-cert\\.pem}"]);
    let identity = format!("spiffe://cluster.local/ns/{}/sa/{account}", ns.name());
    let names = format!("subjectAltName=URI:{identity}");
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-keyout", "/dev/null"];
    let csr = printed(&run("openssl", &[&["req", "-new", "-subj", "/", "-addext", &names], &key[..]].concat(), ""));

    // IstioCertificateRequest of node/proto/ca.proto, with a Struct of one string.
    let value = field(3, identity.as_bytes());
    let entry = [field(1, b"ImpersonatedIdentity"), field(2, &value)].concat();
    let request = [field(1, csr.as_bytes()), field(4, &field(1, &entry))].concat();
    let length = u32::try_from(request.len()).expect("it is short").to_be_bytes();
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).expect("the file is written");
        path.display().to_string()
    };
    let body = format!("@{}", file("request", &[&[0], &length[..], &request].concat()));
    let root = file("root.pem", root.as_bytes());
    let resolve = format!("istiod.istio-system.svc:15012:{address}");
    let bearer = format!("authorization: Bearer {}", token.trim());
    let url = "https://istiod.istio-system.svc:15012/istio.v1.auth.IstioCertificateService/CreateCertificate";
    let options = ["-sS", "--http2", "--cacert", &root, "--resolve", &resolve, "--data-binary", &body];
    let headers = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-H", "clusterid: Kubernetes"];
    let rest = ["-H", &bearer, "--dump-header", "-", "--output", "/dev/null", url];
    let answered = printed(&run("curl", &[&options[..], &headers, &rest].concat(), ""));
    let status = answered.lines().find_map(|line| line.strip_prefix("grpc-status: "));
    status.unwrap_or_else(|| panic!("it has a status: {answered}")).trim().to_owned()
}

/// Returns a field of a message of Protocol Buffers.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut left = bytes.len();
    while left >= 0x80 {
        field.push(u8::try_from(left & 0x7f).expect("it has seven bits") | 0x80);
        left >>= 7;
    }
    field.push(u8::try_from(left).expect("it has seven bits"));
    field.extend(bytes);
    field
}

#[tokio::test]
async fn agent_gets_certificates_of_its_nodes_accounts_only() {
    let ns = &scenario("two-nodes-identity", &[NODE_PROXY]).await;
    for node in NODES {
        let name = format!("of-{node}");
        ns.create_object(account(&name)).await;
        let mut spec = pod_spec("Always", &[shell("main", "sleep 86400")]);
        spec["serviceAccountName"] = json!(name);
        ns.create_object(on(node, deployment(&name, &spec))).await;
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
    }
    let agents = agents();
    for (agent, of_agent, _) in &agents {
        for node in NODES {
            // OK, or Unauthenticated.
            let expected = if node == of_agent { "0" } else { "16" };
            let status = status_of_signing(ns, &format!("of-{node}"), agent);
            assert_eq!(status, expected, "of {node} for the agent of {of_agent}");
        }
    }
    assert_eq!(agents.len(), 2);
}

#[tokio::test]
async fn rebooted_node_has_the_proxies_of_its_pods_only() {
    let ns = &scenario("two-nodes-reboot", &[NODE_PROXY]).await;
    server_and_client(ns, NODES).await;
    let client = ns.pod_with("app=client").await.name_any();
    let before = node::sandboxes_of_second_node();
    restart("second-node");
    let is_back = |pod: &Pod| {
        let view = PodView(pod);
        (view.restarts("main") >= Some(1) && view.is_ready("main")).then_some(())
    };
    ns.pod_until(&client, "the same pod's next container", is_back).await;
    assert_heard(ns, "after the reboot").await;

    ns.until("agents", async || agents().iter().all(|(.., is_ready)| *is_ready).then_some(())).await;
    until_proxies(ns, "node2", &running(&node::proxy_image())).await;
    let left = async || {
        let now = node::sandboxes_of_second_node();
        (now.len() == 1 && !before.contains(&now[0])).then_some(())
    };
    ns.until("nothing of the earlier proxy", left).await;
}
