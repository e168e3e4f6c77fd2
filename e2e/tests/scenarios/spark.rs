//! A driver and executors of Spark, whose own `spark-submit` creates them.

use std::process::Output;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::strict;
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::clients::{self, assert_runs_on_without};

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
    clients::run(ns, "spark", vec![("WAIT", waits_for_the_end.to_string())]).await
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
    assert_runs_on_without(ns, DRIVER, "spark-kubernetes-driver").await;
}
