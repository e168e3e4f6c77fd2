//! `NetworkPolicies`, which the component `kube-router` enforces. It finds a pod by the address in its status, so a policy takes effect
//! some seconds after a pod has started.

use e2e::clients::{asks_status, until_said};
use e2e::cluster::{MESH, NODE_PROXY, OPT_IN};
use e2e::kubectl::{Applied, apply, kubectl, wait_for_rollout};
use e2e::manifests::{deployment, each_by_its_connection, job, pod_spec, server, shell, web};
use e2e::rendered::chart;
use e2e::{Namespace, PodView, scenario};
use kube::ResourceExt;
use serde_json::{Value, json};

/// Returns a policy for the pods of a Deployment.
fn policy(app: &str, spec: &Value) -> Value {
    let mut policy =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": app}, "spec": spec});
    policy["spec"]["podSelector"] = json!({"matchLabels": {"app": app}});
    policy
}

/// Returns what a proxy needs: istiod and DNS.
fn to_istiod_and_dns() -> [Value; 2] {
    let istiod = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "istio-system"}}});
    [
        json!({"to": [istiod], "ports": [{"port": 15012, "protocol": "TCP"}]}),
        json!({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}),
    ]
}

/// Returns a rule that admits what goes to the pods of a Deployment.
fn to(app: &str) -> Value {
    json!({"to": [{"podSelector": {"matchLabels": {"app": app}}}]})
}

/// Creates two servers that take mutual TLS only, `web` and `other`, and a client. All have proxies beside them.
async fn servers_and_client(ns: &Namespace) {
    ns.create_objects(server().into_iter().chain(web("other"))).await;
    // The engine lets connections pass that were there before a policy.
    ns.create_objects(["web", "other"].into_iter().flat_map(each_by_its_connection)).await;
    ns.create_object(deployment("client", &pod_spec("Always", &[shell("main", "sleep 86400")]))).await;
    for name in ["web", "other", "client"] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
        let spec = ns.pod_with(&format!("app={name}")).await.spec.expect("a pod has a spec");
        assert_eq!(spec.runtime_class_name.as_deref(), Some("istio-aux"), "{name}");
    }
}

/// Asserts that the client has this status from a server within a minute.
async fn assert_status(ns: &Namespace, host: &str, status: &str, when: &str) {
    let client = ns.pod_with("app=client").await.name_any();
    let said = ns.run_script(&client, &until_said(&asks_status(host), status));
    assert_eq!(said, status, "of {host}, {when}");
}

#[tokio::test]
async fn policy_for_a_pod_binds_the_proxy_beside_it() {
    let ns = &scenario("policy-of-egress", &[NODE_PROXY]).await;
    servers_and_client(ns).await;
    for host in ["web", "other"] {
        assert_status(ns, host, "200", "without a policy").await;
    }

    let [istiod, dns] = to_istiod_and_dns();
    let egress = json!({"policyTypes": ["Egress"], "egress": [istiod, dns, to("web")]});
    ns.create_object(policy("client", &egress)).await;
    assert_status(ns, "other", "503", "which the client's policy forbids").await;
    assert_status(ns, "web", "200", "which the client's policy admits").await;

    // A pod that starts under the policy.
    ns.create_object(policy("late", &egress)).await;
    let [of_other, of_web] =
        [("other", "503"), ("web", "200")].map(|(host, status)| until_said(&asks_status(host), status));
    let mut late = job("late", &pod_spec("Never", &[shell("main", &format!("{of_other}; echo; {of_web}"))]));
    late["spec"]["template"]["metadata"]["labels"] = json!({"app": "late"});
    ns.create_object(late).await;
    ns.until_complete("late").await;
    let pod = ns.pod_of_job("late").await;
    assert_eq!(ns.pod(&pod).await.spec.and_then(|spec| spec.runtime_class_name).as_deref(), Some("istio-aux"));
    assert_eq!(ns.logs(&pod, "main").await, "503\n200");
}

#[tokio::test]
async fn policy_for_a_server_admits_by_its_rules_to_the_proxy_beside_it() {
    let ns = &scenario("policy-of-ingress", &[NODE_PROXY]).await;
    servers_and_client(ns).await;
    let from = |app: &str| json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]});
    let of_server = policy("web", &from("nobody"));
    ns.create_object(of_server.clone()).await;
    assert_status(ns, "web", "503", "whose policy admits others").await;
    assert_status(ns, "other", "200", "which has no policy").await;
    ns.patch(&of_server, json!({"spec": from("client")})).await;
    assert_status(ns, "web", "200", "whose policy admits the client").await;
}

#[tokio::test]
async fn webhook_serves_behind_the_charts_policy() {
    let ns = &scenario("policy-of-webhook", &[MESH, OPT_IN]).await;
    let mut client = deployment("client", &pod_spec("Always", &[shell("main", "sleep 86400")]));
    client["spec"]["template"]["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("false");
    ns.create_object(client).await;
    wait_for_rollout(ns.name(), "deployment/client");
    let of_webhook = ["get", "pods", "-n", "istio-aux", "-l", "app.kubernetes.io/name=istio-aux"];
    let address = kubectl(&[&of_webhook[..], &["-o", "jsonpath={.items[0].status.podIP}"]].concat());
    let client = ns.pod_with("app=client").await.name_any();
    // By each of its two ports it responds that there is no such page.
    let assert_statuses = |expected: &str, when: &str| {
        let asked = ["http", "https"].map(|scheme| {
            let port = if scheme == "https" { 8443 } else { 8080 };
            format!("curl -sk -o /dev/null -w '%{{http_code}} ' --max-time 5 {scheme}://{address}:{port}/ || true")
        });
        let said = ns.run_script(&client, &until_said(&asked.join("; "), &format!("'{expected}'")));
        assert_eq!(said, expected, "{when}");
    };
    let of_chart = chart(&["--set=networkPolicy=true"])["NetworkPolicy istio-aux"].clone();
    let without = |index: usize| {
        let mut policy = of_chart.clone();
        policy["spec"]["ingress"][0]["ports"].as_array_mut().expect("it is a list").remove(index);
        policy
    };
    assert_statuses("404 404 ", "without a policy");
    let _end = Applied::new(&[without(0)]);
    assert_statuses("404 000 ", "without the webhook's port");
    apply(&[without(1)]);
    assert_statuses("000 404 ", "without the port of health");
    apply(&[of_chart]);
    assert_statuses("404 404 ", "with the chart's policy");

    ns.create_object(job("ends", &pod_spec("Never", &[shell("main", "true")]))).await;
    ns.until_complete("ends").await;
    let pod = ns.pod(&ns.pod_of_job("ends").await).await;
    assert!(PodView(&pod).container("aux-shim").is_some(), "the webhook has answered: {}", ns.describe_pod(&pod).await);
}
