//! The proxy beside the pod: docs/node.md. Pods of runtime class `istio-aux` have no container of ours, and are in the mesh.

mod confinement;
mod dns;
mod failures;
mod moving;
mod pipelines;
mod probes;
mod restart_rules;
mod scrapes;
mod services;
mod stand_ins;
mod streams;
mod upgrade;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use e2e::clients::{asks_status, greets, greets_by_each_address, host_of, until_said};
use e2e::command::{on_cluster, printed, run};
use e2e::install_methods::BINARY;
use e2e::kubectl::{kubectl, wait_for_rollout};
use e2e::manifests::{GREETING, account, deployment, job, pod_spec, server, shell, strict, with_init};
use e2e::namespace::name_of;
use e2e::{Namespace, cluster::MESH, node, scenario};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::failures::beside_deployment;

/// Returns a Job whose pods opt out of Istio's injection, and run under the service account `client`.
fn client_job(name: &str, spec: &Value) -> Value {
    let mut job = job(name, spec);
    let template = &mut job["spec"]["template"];
    template["metadata"]["labels"] = json!({
        "sidecar.istio.io/inject": "false", "security.istio.io/tlsMode": "istio",
        "service.istio.io/canonical-name": name, "service.istio.io/canonical-revision": "latest",
    });
    template["spec"]["serviceAccountName"] = json!("client");
    job["spec"]["backoffLimit"] = json!(0);
    job
}

/// Returns the only pod with these labels as `NAMESPACE/NAME`.
async fn path_of(ns: &Namespace, labels: &str) -> String {
    format!("{}/{}", ns.name(), ns.pod_with(labels).await.name_any())
}

/// Sets the runtime class `istio-aux`, for which the node agent runs the proxy outside of the pod.
fn beside(mut job: Value) -> Value {
    job["spec"]["template"]["spec"]["runtimeClassName"] = json!("istio-aux");
    job
}

/// Returns a policy that allows requests from one service account of the namespace only.
fn only(ns: &Namespace, account: &str) -> Value {
    let principal = format!("cluster.local/ns/{}/sa/{account}", ns.name());
    json!({
        "apiVersion": "security.istio.io/v1beta1", "kind": "AuthorizationPolicy", "metadata": {"name": "only"},
        "spec": {"rules": [{"from": [{"source": {"principals": [principal]}}]}]},
    })
}

/// Runs a Job to its end, and returns its pod and the log of its container `main`.
async fn ended(ns: &Namespace, job: Value) -> (Pod, String) {
    let name = name_of(&job).to_owned();
    ns.create_object(job).await;
    let pod = ns.pod_of_job(&name).await;
    ns.final_phase(&pod).await;
    (ns.pod(&pod).await, ns.logs(&pod, "main").await)
}

/// Creates a server that takes mutual TLS of the account `client` only, and that account.
async fn strict_server(ns: &Namespace) {
    ns.create_objects(server().into_iter().chain([account("client"), only(ns, "client")])).await;
    wait_for_rollout(ns.name(), "deployment/web");
}

#[tokio::test]
async fn job_beside_its_proxy_reaches_a_strict_service() {
    let ns = &scenario("node-job", &[MESH]).await;
    strict_server(ns).await;
    let spec = pod_spec("Never", &[shell("main", &greets("web"))]);

    let (_, outside) = ended(ns, client_job("outside", &spec)).await;
    assert!(outside.trim_end().ends_with("000"), "STRICT ends the connection: {outside}");

    let (pod, inside) = ended(ns, beside(client_job("inside", &spec))).await;
    assert_eq!(inside, format!("{GREETING}\n 200"));
    let containers: Vec<_> = pod.spec.iter().flat_map(|spec| &spec.containers).map(|main| main.name.as_str()).collect();
    assert_eq!(containers, ["main"]);
    assert!(pod.spec.as_ref().is_some_and(|spec| spec.init_containers.is_none()), "it has no init container");
    ns.until_complete("inside").await;
    node::until_no_proxies(ns).await;
}

#[tokio::test]
async fn init_container_reaches_a_strict_service() {
    let ns = &scenario("node-init", &[MESH]).await;
    strict_server(ns).await;
    let main = pod_spec("Never", &[shell("main", "cat /said/init")]);
    let mut spec = with_init(main, &[shell("init", &format!("({}) >/said/init", greets("web")))]);
    spec["volumes"] = json!([{"name": "said", "emptyDir": {}}]);
    for list in ["containers", "initContainers"] {
        spec[list][0]["volumeMounts"] = json!([{"name": "said", "mountPath": "/said"}]);
    }
    let (_, said) = ended(ns, beside(client_job("init", &spec))).await;
    assert_eq!(said, format!("{GREETING}\n 200"));
}

#[tokio::test]
async fn service_is_reached_by_its_address_of_each_family() {
    let ns = &scenario("node-families", &[MESH]).await;
    failures::living_pods(ns).await;
    let (script, expected) = greets_by_each_address(ns).await;
    let spec = pod_spec("Never", &[shell("main", &script)]);
    assert_eq!(ended(ns, beside(client_job("client", &spec))).await.1, expected);

    // No address leads around the proxy: the server takes mutual TLS only, which a pod outside of the mesh does not speak.
    let server = ns.pod_with("app=web").await.status.and_then(|status| status.pod_ips).unwrap_or_default();
    let asked: Vec<_> = server.iter().map(|pod| asks_status(&format!("{}:8080", host_of(&pod.ip)))).collect();
    let outside = |name: &str, script: &str| {
        let mut job = client_job(name, &pod_spec("Never", &[shell("main", script)]));
        job["spec"]["template"]["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "false"});
        job
    };
    let [none, all] = ["000", "200"].map(|status| status.repeat(server.len()));
    assert_eq!(ended(ns, outside("refused", &asked.join("; "))).await.1, none);
    // The control: it may be served there.
    ns.patch(&strict(), json!({"spec": {"mtls": {"mode": "PERMISSIVE"}}})).await;
    assert_eq!(ended(ns, outside("served", &until_said(&asked.join("; "), &all))).await.1, all);
}

#[tokio::test]
async fn admin_port_is_forwarded_to() {
    let ns = &scenario("node-admin", &[MESH]).await;
    failures::living_pods(ns).await;
    let pod = format!("pod/{}", ns.pod_with("app=web").await.name_any());
    // As istioctl does.
    let mut forward = on_cluster("kubectl", &["-n", ns.name(), "port-forward", &pod, ":15000"]);
    let mut forward = forward.stdout(Stdio::piped()).spawn().expect("kubectl runs");
    let mut line = String::new();
    // It is kept: kubectl writes a line for each connection.
    let mut said = BufReader::new(forward.stdout.take().expect("it is piped"));
    said.read_line(&mut line).expect("it is read");
    let address = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next());
    let address = address.unwrap_or_else(|| panic!("it has a port: {line}"));
    let info = run("curl", &["-sSf", &format!("http://{address}/server_info")], "");
    forward.kill().expect("it is ended");
    forward.wait().expect("it has ended");
    let info: Value = serde_json::from_str(&printed(&info)).expect("it is JSON");
    let node = info["node"]["id"].as_str().unwrap_or_default();
    assert_eq!([&info["state"], &json!(node.contains(ns.name()))], [&json!("LIVE"), &json!(true)], "{node}");
}

#[tokio::test]
async fn agents_program_prints_status_and_logs() {
    let ns = &scenario("node-status", &[MESH]).await;
    failures::living_pods(ns).await;
    let pod = path_of(ns, "app=web").await;
    let table = node::agent(&["status"]);
    let line = table.lines().find(|line| line.starts_with(&pod)).expect("a line about the pod");
    let has_a_days_certificate = ["23h", "24h0m"].iter().any(|left| line.contains(left));
    assert!(line.contains("running") && has_a_days_certificate, "{line}");
    let json: Value = serde_json::from_str(&node::agent(&["status", "--output=json"])).expect("it is JSON");
    let of_pod = json.as_array().and_then(|all| all.iter().find(|proxy| proxy["pod"] == *pod)).expect("the pod");
    assert_eq!(of_pod["state"], "running");
    assert!(node::agent(&["logs", &pod]).contains("Envoy proxy is ready"));
    // The command line asks the agents of all nodes.
    let all: Value = serde_json::from_str(&printed(&run(BINARY, &["proxies", "-o", "json"], ""))).expect("it is JSON");
    let found = all["proxies"].as_array().and_then(|all| all.iter().find(|proxy| proxy["pod"] == *pod));
    assert_eq!(found.map(|proxy| [&proxy["node"], &proxy["state"]]), Some([&json!("node1"), &json!("running")]));
    let log = printed(&run(BINARY, &["proxies", "--logs", &pod], ""));
    assert!(log.contains("Envoy proxy is ready") && log.ends_with('\n'), "{log}");
    let of_agents = ["-n", "istio-aux-node", "get", "pods", "--output", "jsonpath={.items[0].metadata.name}"];
    let agent = format!("istio-aux-node/{}", kubectl(&of_agents));
    for (options, expected) in [
        (["--node", "other"], "there is no node agent on node other"),
        (["--logs", &agent], "has no proxy beside it; `istio-aux proxies` lists all"),
        (["--logs", "team/none"], "there is no pod team/none"),
    ] {
        let none = run(BINARY, &[&["proxies"], &options[..]].concat(), "");
        assert_eq!(none.status.code(), Some(1));
        let error = String::from_utf8_lossy(&none.stderr);
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn pods_of_an_account_share_a_certificate() {
    let ns = &scenario("node-accounts", &[MESH]).await;
    ns.create_object(account("client")).await;
    let mut spec = pod_spec("Always", &[shell("main", "sleep 86400")]);
    let mut others = beside_deployment(deployment("others", &spec));
    others["spec"]["replicas"] = json!(2);
    spec["serviceAccountName"] = json!("client");
    let mut clients = beside_deployment(deployment("clients", &spec));
    clients["spec"]["replicas"] = json!(3);
    ns.create_objects([clients, others]).await;
    for name in ["clients", "others"] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
    }
    let mut chains = node::certificates(ns.name());
    assert_eq!(chains.len(), 5);
    chains.dedup();
    assert_eq!(chains.len(), 2, "one for each account");
}

#[tokio::test]
async fn proxys_identity_is_the_pods_account() {
    let ns = &scenario("node-identity", &[MESH]).await;
    strict_server(ns).await;
    ns.create_object(account("other")).await;
    let mut job = beside(client_job("other", &pod_spec("Never", &[shell("main", &greets("web"))])));
    let template = &mut job["spec"]["template"];
    template["spec"]["serviceAccountName"] = json!("other");
    template["metadata"]["annotations"] =
        json!({"istio-aux.io/service-account": "client", "sidecar.istio.io/serviceAccount": "client"});
    let (_, said) = ended(ns, job).await;
    assert_eq!(said, "RBAC: access denied 403");
}
