//! What happens when something that proxies beside pods depend on is away: the table of docs/node.md.

use e2e::clients::{assert_heard, assert_still_heard, greets};
use e2e::cluster::{MESH, restart};
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::{deployment, job, pod, pod_spec, server, shell, with_memory};
use e2e::node::{self, ProxyProcess, WithMetrics, WithoutAgent, WithoutNetwork, WithoutSocket};
use e2e::outage::NoReplica;
use e2e::{Namespace, PodView, scenario};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{account, beside, client_job, path_of};

/// Creates a server with its proxy beside it, which takes mutual TLS only, and a client of the same kind.
pub(crate) async fn living_pods(ns: &Namespace) {
    let mut objects = server();
    for object in &mut objects {
        if object["kind"] == "Deployment" {
            *object = beside_deployment(object.clone());
        }
    }
    let spec = pod_spec("Always", &[shell("main", "sleep 86400")]);
    objects.extend([account("client"), beside_deployment(deployment("client", &spec))]);
    ns.create_objects(objects).await;
    for name in ["web", "client"] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
    }
}

/// Returns a Deployment with proxies beside its pods. The kubelet's HTTP probes do not reach them.
pub(crate) fn beside_deployment(mut deployment: Value) -> Value {
    let name = deployment["metadata"]["name"].clone();
    let template = &mut deployment["spec"]["template"];
    template["metadata"]["labels"] = json!({
        "app": name, "sidecar.istio.io/inject": "false", "security.istio.io/tlsMode": "istio",
    });
    template["spec"]["runtimeClassName"] = json!("istio-aux");
    template["spec"]["containers"][0]["readinessProbe"] = Value::Null;
    deployment
}

/// Creates a Job whose proxy is beside it and that asks the living server.
async fn start_job(ns: &Namespace, name: &str) {
    let spec = pod_spec("Never", &[shell("main", &greets("web"))]);
    ns.create_object(beside(client_job(name, &spec))).await;
}

/// Asserts that no container of the Job's pod starts until a pod that needs no proxy, and is created later, has ended.
async fn assert_waits(ns: &Namespace, name: &str) {
    let pod = ns.pod_of_job(name).await;
    let mut ordinary = job("ordinary", &pod_spec("Never", &[shell("main", "echo hello")]));
    ordinary["spec"]["template"]["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "false"});
    ns.create_object(ordinary).await;
    ns.until_complete("ordinary").await;
    assert_eq!(PodView(&ns.pod(&pod).await).phase(), "Pending");
}

#[tokio::test]
async fn absent_agent_delays_new_pods_only() {
    let ns = &scenario("node-agent-away", &[MESH]).await;
    living_pods(ns).await;
    start_job(ns, "gone").await;
    let gone = ns.pod_of_job("gone").await;
    ns.until_complete("gone").await;

    assert_heard(ns, "before").await;
    let away = WithoutAgent::begin();
    assert_still_heard(ns, "without the agent").await;
    ns.delete_pod(&gone).await;
    ns.until_gone(&gone).await;
    start_job(ns, "waits").await;
    assert_waits(ns, "waits").await;

    drop(away);
    ns.until_complete("waits").await;
    assert_still_heard(ns, "with another agent").await;
    for name in ["web", "client"] {
        ns.delete(&deployment(name, &Value::Null)).await;
    }
    node::until_no_proxies(ns).await;
}

#[tokio::test]
async fn deletion_that_nobody_reported_is_found() {
    let ns = &scenario("node-missed-del", &[MESH]).await;
    ns.create_object(account("client")).await;
    let spec = with_memory(pod_spec("Never", &[shell("main", "until [ -e /memory/end ]; do sleep 0.2; done")]));
    ns.create_object(beside(client_job("one", &spec))).await;
    let pod = ns.pod_of_job("one").await;
    ns.pod_until(&pod, "its start", |pod| PodView(pod).is_ready("main").then_some(())).await;
    let away = WithoutSocket::begin();
    ns.exec(&pod, "main", &["touch", "/memory/end"]);
    ns.until_complete("one").await;
    // The pod stays with its Job, so the API server has it still.
    ns.until("the deletion of its sandbox", async || away.has_deletion().then_some(())).await;
    drop(away);
    node::until_no_proxies(ns).await;
    assert_eq!(PodView(&ns.pod(&pod).await).phase(), "Succeeded");
}

#[tokio::test]
async fn pod_of_a_handler_without_its_network_is_reported() {
    let ns = &scenario("node-no-network", &[MESH]).await;
    ns.create_object(account("client")).await;
    let metrics = WithMetrics::begin("");
    // A pod with the node's network is none of them: it has no proxy in any case.
    let mut own = pod("host", &pod_spec("Never", &[shell("main", "sleep 86400")]));
    own["spec"]["hostNetwork"] = json!(true);
    own["spec"]["runtimeClassName"] = json!("istio-aux");
    ns.create_object(own).await;
    ns.pod_until("host", "its start", |pod| PodView(pod).is_ready("main").then_some(())).await;
    let without = WithoutNetwork::begin();
    let sleep = pod_spec("Never", &[shell("main", "sleep 86400")]);
    ns.create_object(beside(client_job("one", &sleep))).await;
    let pod = ns.pod_of_job("one").await;
    ns.pod_until(&pod, "its start", |pod| PodView(pod).is_ready("main").then_some(())).await;
    let all: Value = serde_json::from_str(&node::agent(&["status", "--output=json"])).expect("it is JSON");
    let name = format!("{}/{pod}", ns.name());
    let is_missing = |one: &Value| one["pod"] == *name && one["state"] == "missing";
    assert!(all.as_array().is_some_and(|all| all.iter().any(is_missing)), "{all}");
    let reason = node::unready().unwrap_or_default();
    assert!(reason.contains("handler istio-aux has cni_conf_dir \"\""), "{reason}");
    let is_said = |line: &str| line.contains("runs without a proxy") && line.contains(&name);
    ns.until("the agent's warning", async || node::agent_log().lines().any(is_said).then_some(())).await;
    let said = ns.until_event("Pod", "NoProxy").await;
    assert!(said.contains("outside of the mesh"), "{said}");
    let counts = |line: &String| line == "istio_aux_node_pods_without_proxy 1";
    ns.until("the metric of the chart's alert", async || metrics.samples().iter().any(counts).then_some(())).await;
    drop(without);
    ns.until("readiness", async || node::unready().is_none().then_some(())).await;
}

#[tokio::test]
async fn ended_proxy_is_restarted_without_its_pod() {
    let ns = &scenario("node-proxy-ends", &[MESH]).await;
    living_pods(ns).await;
    assert_heard(ns, "before").await;
    let ready_since = async || {
        let client = serde_json::to_value(ns.pod_with("app=client").await.status).expect("it is JSON");
        let conditions = client["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "Ready").expect("it has the condition")
    };
    let before = ready_since().await;
    node::kill_proxies();
    assert_heard(ns, "after").await;
    assert_eq!((&before["status"], &ready_since().await), (&json!("True"), &before), "no probe fails, as it has none");
    let said = ns.until_event("Pod", "ProxyEnded").await;
    assert!(said.contains("is started again"), "{said}");
    for pod in ns.pods_with("app in (web, client)").await {
        let pod = PodView(&pod);
        assert_eq!(pod.restarts("main").or(pod.restarts("web")), Some(0));
    }
}

#[tokio::test]
async fn proxy_that_hangs_is_replaced_without_its_pod() {
    let ns = &scenario("node-proxy-hangs", &[MESH]).await;
    living_pods(ns).await;
    let pod = ns.pod_with("app=web").await.name_any();
    let name = format!("{}/{pod}", ns.name());
    let [_, envoy] = ProxyProcess::of(&name);
    envoy.stop();
    ns.until("another proxy", async || (!envoy.exists()).then_some(())).await;
    assert_heard(ns, "after the proxy hung").await;
    let pod = ns.pod(&pod).await;
    assert_eq!(PodView(&pod).restarts("web"), Some(0));
}

#[tokio::test]
async fn restarted_containerd_leaves_pods_their_proxies() {
    let ns = &scenario("node-containerd", &[MESH]).await;
    living_pods(ns).await;
    let mut names = Vec::new();
    for app in ["app=web", "app=client"] {
        names.push(path_of(ns, app).await);
    }
    let processes = || names.iter().map(|name| ProxyProcess::of(name)).collect::<Vec<_>>();
    let before = processes();
    assert_heard(ns, "before").await;
    restart("containerd");
    assert_still_heard(ns, "after containerd's restart").await;
    start_job(ns, "later").await;
    ns.until_complete("later").await;
    assert_eq!(processes(), before, "the agent has connected again, and has started no proxy anew");
    node::kill_proxies();
    assert_heard(ns, "after the proxies' end").await;
}

#[tokio::test]
async fn absent_istiod_delays_new_pods_only() {
    let ns = &scenario("node-istiod-away", &[MESH]).await;
    living_pods(ns).await;
    assert_heard(ns, "before").await;
    let away = NoReplica::of_istiod();
    start_job(ns, "waits").await;
    assert_waits(ns, "waits").await;
    assert_still_heard(ns, "without istiod").await;
    drop(away);
    ns.until_complete("waits").await;
}
