//! The kubelet's probes of pods that take mutual TLS only and have their proxy beside them.

use std::time::Duration;

use e2e::cluster::NODE_PROXY;
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::{container, deployment, pod_spec, strict, with_annotations};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

/// Returns a server with all three probes, over HTTP and TCP, and a named port.
fn probed(name: &str, readiness: &Value, annotations: &Value) -> Value {
    let mut serve = container("main", &["httpd", "-f", "-p", "8080", "-h", "/www"]);
    serve["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    serve["readinessProbe"] = readiness.clone();
    serve["readinessProbe"]["periodSeconds"] = json!(1);
    serve["livenessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    serve["startupProbe"] = json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "failureThreshold": 60});
    with_annotations(deployment(name, &pod_spec("Always", &[serve])), annotations)
}

/// Returns a server of gRPC's health checks: this node's etcd.
fn probed_over_grpc(name: &str, annotations: &Value) -> Value {
    let urls = ["--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://127.0.0.1:2379"];
    let mut serve = container("main", &["/etcd", "--data-dir=/tmp/etcd", urls[0], urls[1]]);
    serve["readinessProbe"] = json!({"grpc": {"port": 2379}, "periodSeconds": 1});
    serve["volumeMounts"] = json!([{"name": "etcd", "mountPath": "/etcd"}]);
    let mut spec = pod_spec("Always", &[serve]);
    spec["volumes"] = json!([{"name": "etcd", "hostPath": {"path": "/usr/bin/etcd", "type": "File"}}]);
    with_annotations(deployment(name, &spec), annotations)
}

/// Asserts that no pod of a Deployment is ready for a while, though its container runs.
async fn assert_runs_unready(ns: &Namespace, name: &str) {
    let label = format!("app={name}");
    let pod = async || ns.pods_with(&label).await.pop();
    ns.until("a container that runs", async || pod().await.filter(|pod| PodView(pod).runs("main"))).await;
    ns.holds_for(Duration::from_secs(8), "no pod is ready", async || {
        let deployment = ns.get(&deployment(name, &Value::Null)).await;
        deployment["status"]["readyReplicas"].is_null()
    })
    .await;
}

#[tokio::test]
async fn probes_of_a_strict_pod_report_its_container() {
    let ns = &scenario("node-probes", &[NODE_PROXY]).await;
    ns.create_object(strict()).await;
    let kept = json!({"sidecar.istio.io/rewriteAppHTTPProbers": "false"});
    let none = json!({});
    let page = |path: &str| json!({"httpGet": {"path": path, "port": "web"}});
    ns.create_object(probed("control", &page("/"), &kept)).await;
    ns.create_object(probed("no-page", &page("/not-there"), &none)).await;
    // Envoy would accept the connection.
    ns.create_object(probed("no-port", &json!({"tcpSocket": {"port": 9}}), &none)).await;
    ns.create_object(probed("probed", &page("/"), &none)).await;
    ns.create_object(probed_over_grpc("grpc-control", &kept)).await;
    ns.create_object(probed_over_grpc("grpc", &none)).await;
    wait_for_rollout(ns.name(), "deployment/probed");
    wait_for_rollout(ns.name(), "deployment/grpc");
    for name in ["control", "no-page", "no-port", "grpc-control"] {
        assert_runs_unready(ns, name).await;
    }
    let pod = ns.pod_with("app=probed").await;
    assert_eq!(PodView(&pod).restarts("main"), Some(0));
}
