//! Services that call each other, shaped as Istio's bookinfo, in a namespace that asks for proxies beside its pods by a label.

use contract::names::{CANONICAL_NAME_LABEL, CANONICAL_REVISION_LABEL};
use e2e::clients::until_said;
use e2e::cluster::{MESH, NODE_PROXY};
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::{self, container, deployment, job, pod, pod_spec, shell, strict};
use e2e::{Namespace, PodView, scenario};
use json_patch::merge;
use serde_json::{Value, json};

use crate::account;

/// A service, whom it calls, and whom its policy admits.
const SERVICES: [(&str, &str, &str); 4] = [
    ("productpage", "details reviews ratings", "client"),
    ("details", "", "productpage"),
    ("reviews", "ratings", "productpage"),
    ("ratings", "", "reviews"),
];

/// Calls the services that it is told to, and says how that went: status, and the header `x-filtered`.
const PROGRAM: &str = r#"#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
for callee in $CALLS; do
  reply=$(curl -s --max-time 10 -w '\n%{http_code} %header{x-filtered}' "http://$callee/cgi-bin/call")
  echo "$NAME to $callee: $(echo "$reply" | tail -n 1)"
  echo "$reply" | grep ' to '
done
true
"#;

fn service(ns: &Namespace, (name, calls, caller): (&str, &str, &str)) -> [Value; 4] {
    let mut serve = container("main", &["httpd", "-f", "-p", "8080", "-h", "/srv"]);
    serve["env"] = json!([{"name": "NAME", "value": name}, {"name": "CALLS", "value": calls}]);
    serve["volumeMounts"] = json!([{"name": "program", "mountPath": "/srv/cgi-bin"}]);
    let mut spec = pod_spec("Always", &[serve]);
    spec["serviceAccountName"] = json!(name);
    spec["volumes"] = json!([{"name": "program", "configMap": {"name": "program", "defaultMode": 0o755}}]);
    let principal = format!("cluster.local/ns/{}/sa/{caller}", ns.name());
    [
        account(name),
        manifests::service(name, 80, 8080),
        json!({
            "apiVersion": "security.istio.io/v1beta1", "kind": "AuthorizationPolicy", "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "rules": [{"from": [{"source": {"principals": [principal]}}]}],
            },
        }),
        deployment(name, &spec),
    ]
}

/// Returns the accounts and policies that all services share, the program, and an Envoy filter for one service.
fn rest() -> [Value; 4] {
    [
        account("client"),
        strict(),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program"}, "data": {"call": PROGRAM}}),
        json!({
            "apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "metadata": {"name": "details"},
            "spec": {
                "workloadSelector": {"labels": {"app": "details"}},
                "configPatches": [{
                    "applyTo": "ROUTE_CONFIGURATION", "match": {"context": "SIDECAR_INBOUND"},
                    "patch": {"operation": "MERGE", "value": {
                        "response_headers_to_add": [{"header": {"key": "x-filtered", "value": "filtered"}}],
                    }},
                }],
            },
        }),
    ]
}

/// Returns a client with an ordinary sidecar, which asks until all answers are as expected.
fn client() -> Value {
    let call = "curl -s --max-time 30 http://productpage/cgi-bin/call";
    let mut job = job("client", &pod_spec("Never", &[shell("main", &until_said(call, "*filtered*200*200*403*"))]));
    let template = &mut job["spec"]["template"];
    template["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "true"});
    template["spec"]["serviceAccountName"] = json!("client");
    job
}

#[tokio::test]
async fn services_call_each_other_by_their_policies() {
    let ns = &scenario("node-services", &[NODE_PROXY]).await;
    ns.create_objects(rest()).await;
    ns.create_objects(SERVICES.into_iter().flat_map(|each| service(ns, each))).await;
    for (name, ..) in SERVICES {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
        let spec = ns.pod_with(&format!("app={name}")).await.spec.expect("a pod has a spec");
        assert_eq!(spec.runtime_class_name.as_deref(), Some("istio-aux"), "{name}");
        assert_eq!(spec.containers.len(), 1, "{name} has its own container only");
    }

    ns.create_object(client()).await;
    let pod = ns.pod_of_job("client").await;
    ns.pod_until(&pod, "the client's end", |pod| PodView(pod).exit_code("main")).await;
    let said = ns.logs(&pod, "main").await;
    let calls: Vec<_> = said.lines().map(str::trim_end).collect();
    let expected = [
        "productpage to details: 200 filtered",
        "productpage to reviews: 200",
        "reviews to ratings: 200",
        "productpage to ratings: 403",
    ];
    assert_eq!(calls, expected);
}

/// Returns the labels by which Istio names a pod's service, and those that a pod with these fields gets.
async fn service_labels(ns: &Namespace, metadata: &Value) -> [Value; 2] {
    let mut one = pod("one", &pod_spec("Never", &[shell("main", "true")]));
    merge(&mut one["metadata"], metadata);
    let made = ns.dry_run(one).await;
    [CANONICAL_NAME_LABEL, CANONICAL_REVISION_LABEL].map(|label| made["metadata"]["labels"][label].clone())
}

#[tokio::test]
async fn services_have_the_names_that_istios_injector_gives() {
    let beside = &scenario("node-names", &[NODE_PROXY]).await;
    let inside = &scenario("node-names-inside", &[MESH]).await;
    let owned = |version: &str, kind: &str, name: &str, labels: Value| {
        let owner = json!({"apiVersion": version, "kind": kind, "name": name, "uid": "a", "controller": true});
        json!({"name": null, "generateName": "x-", "labels": labels, "ownerReferences": [owner]})
    };
    let hash = |key: &str| json!({key: "5f7"});
    for (metadata, name) in [
        (json!({}), "one"),
        (json!({"labels": {"app": "a", "version": "2"}}), "a"),
        (owned("batch/v1", "Job", "nightly-29381234", json!({})), "nightly"),
        (owned("batch/v1", "Job", "train-1", json!({})), "train-1"),
        (owned("apps/v1", "ReplicaSet", "web-5f7", hash("pod-template-hash")), "web"),
        (owned("apps/v1", "ReplicaSet", "web-5f7", hash("rollouts-pod-template-hash")), "web"),
        (owned("v1", "ReplicationController", "web-1", json!({"deploymentconfig": "web"})), "web"),
        (owned("kubeflow.org/v1", "PyTorchJob", "train", json!({})), "train"),
    ] {
        let [by_webhook, by_istio] = [service_labels(beside, &metadata).await, service_labels(inside, &metadata).await];
        assert_eq!(by_webhook, by_istio, "{metadata}");
        assert_eq!(by_istio[0], name, "{metadata}");
    }
}
