//! A driver and executors of Spark, whose own `spark-submit` creates them.

use std::process::Output;
use std::time::Duration;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::{in_background, on_cluster};
use e2e::manifests::strict;
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

const DRIVER: &str = "driver";
const EXECUTORS: [&str; 2] = ["spark-exec-1", "spark-exec-2"];

/// Returns the account of drivers, which create their executors.
fn account() -> [Value; 3] {
    let rights = "rbac.authorization.k8s.io";
    let version = format!("{rights}/v1");
    let resources = ["pods", "services", "configmaps", "persistentvolumeclaims", "networkpolicies"];
    let verbs = ["create", "get", "list", "watch", "patch", "delete", "deletecollection"];
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DRIVER}}),
        json!({
            "apiVersion": version, "kind": "Role", "metadata": {"name": DRIVER},
            "rules": [{"apiGroups": ["", "networking.k8s.io"], "resources": resources, "verbs": verbs}],
        }),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": {"name": DRIVER},
            "roleRef": {"apiGroup": rights, "kind": "Role", "name": DRIVER},
            "subjects": [{"kind": "ServiceAccount", "name": DRIVER}],
        }),
    ]
}

/// Has Spark compute pi by its own example, where all pods take mutual TLS only. Its pods are kept.
async fn submit(ns: &Namespace, waits_for_the_end: bool) -> Output {
    ns.create_objects(account().into_iter().chain([strict()])).await;
    let namespace = ns.name().to_owned();
    in_background(move || {
        let mut client = on_cluster(concat!(env!("CARGO_MANIFEST_DIR"), "/clients/run"), &["spark"]);
        client.env("NAMESPACE", namespace).env("WAIT", waits_for_the_end.to_string());
        client.output().expect("it can be run")
    })
    .await
}

#[tokio::test]
async fn application_of_spark_succeeds_and_its_pods_end() {
    let ns = &scenario("spark", &[MESH, OPT_IN]).await;
    let output = submit(ns, true).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(ns.logs(DRIVER, "spark-kubernetes-driver").await.contains("Pi is roughly 3.1"));
    for name in EXECUTORS.into_iter().chain([DRIVER]) {
        let pod = ns.until_ended(name, "Succeeded").await;
        assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(0), "{name}");
    }
}

#[tokio::test]
async fn control_driver_of_spark_in_the_mesh_alone_does_not_end() {
    let ns = &scenario("control-spark", &[MESH]).await;
    let output = submit(ns, false).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ended = |pod: &_| PodView(pod).exit_code("spark-kubernetes-driver");
    ns.pod_until(DRIVER, "the payload's end", |pod| ended(pod)).await;
    ns.holds_for(Duration::from_secs(20), "payload ended, pod not", async || {
        PodView(&ns.pod(DRIVER).await).phase() == "Running"
    })
    .await;
}
