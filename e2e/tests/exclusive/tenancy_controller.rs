//! The tenancy controller: the rights of its account, the objects that it keeps and leaves alone, and that it converges.

use std::time::{Duration, Instant};

use e2e::cluster::restart;
use e2e::kubectl::{apply, kubectl, wait_for_removal};
use e2e::rights::rules;
use e2e::tenancy::{
    CONTROLLER, ROLE, TENANT, binding, install, kill_leader, leader, role, until_bound, until_event, until_unbound,
    wait_for_controller,
};
use e2e::{Namespace, scenario};
use serde_json::{Value, json};

fn label(ns: &Namespace, value: &str) {
    e2e::tenancy::label(ns, &format!("{}={value}", TENANT.0));
}

/// Returns the names of a binding's subjects.
fn accounts(binding: &Value) -> Vec<&str> {
    let subjects = binding["subjects"].as_array().expect("it has subjects");
    subjects.iter().filter_map(|subject| subject["name"].as_str()).collect()
}

#[tokio::test]
async fn controllers_account_may_only_keep_its_objects() {
    install();
    let expected = [
        "create kubeflow.org/poddefaults []",
        "create rbac.authorization.k8s.io/rolebindings []",
        "create,patch events.k8s.io/events []",
        "get,bind rbac.authorization.k8s.io/clusterroles [kubeflow-pipelines-edit]",
        "get,list,watch /namespaces []",
        "get,patch,delete kubeflow.org/poddefaults [access-ml-pipeline]",
        "get,patch,delete rbac.authorization.k8s.io/rolebindings [istio-aux-pipelines]",
    ];
    assert_eq!(rules(CONTROLLER.0, CONTROLLER.1, "default").await, expected);
    let mut here = expected.to_vec();
    here.push("get,patch coordination.k8s.io/leases [istio-aux-tenancy]");
    here.sort_unstable();
    assert_eq!(rules(CONTROLLER.0, CONTROLLER.1, CONTROLLER.0).await, here);
}

#[tokio::test]
async fn controllers_account_cannot_bind_another_role() {
    install();
    let ns = &scenario("escalation", &[]).await;
    let account = format!("--as=system:serviceaccount:{}:{}", CONTROLLER.0, CONTROLLER.1);
    let words = ["-n", ns.name(), "create", "rolebinding", "mine", "--clusterrole=admin", "--user=other", &account];
    let tried = e2e::command::run("kubectl", &words, "");
    let errors = String::from_utf8_lossy(&tried.stderr);
    assert!(!tried.status.success() && errors.contains("forbidden"), "{errors}");
}

#[tokio::test]
async fn profile_has_its_objects_while_labeled() {
    install();
    let ns = &scenario("objects", &[TENANT]).await;
    let bound = until_bound(ns).await;
    assert_eq!(accounts(&bound), ["default"]);
    assert_eq!(bound["roleRef"]["name"], ROLE);
    assert!(until_event(ns, "Reconciled").await.starts_with("applied RoleBinding istio-aux-pipelines"));

    kubectl(&["annotate", "namespace", ns.name(), "istio-aux.io/pipelines-accounts=trainer,default-editor"]);
    ns.until("both accounts", async || {
        (accounts(&ns.get(&binding()).await) == ["trainer", "default-editor"]).then_some(())
    })
    .await;

    label(ns, "disabled");
    until_unbound(ns).await;
}

#[tokio::test]
async fn refusal_is_an_event_and_leaves_foreign_objects() {
    install();
    let ns = &scenario("refused", &[]).await;
    let mut theirs = binding();
    theirs["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    theirs["subjects"] = json!([{"kind": "ServiceAccount", "name": "theirs", "namespace": ns.name()}]);
    ns.create_object(theirs.clone()).await;
    let before = ns.get(&theirs).await;

    label(ns, "yes");
    let said = until_event(ns, "InvalidValue").await;
    assert_eq!(said, "label istio-aux.io/tenancy: invalid value \"yes\"; use enabled or disabled");
    label(ns, "enabled");
    assert!(until_event(ns, "RoleBindingNotManaged").await.contains("left unchanged"));
    label(ns, "disabled");
    ns.holds_for(Duration::from_secs(3), "their binding", async || ns.get(&theirs).await == before).await;
    ns.delete(&theirs).await;

    kubectl(&["delete", "clusterrole", ROLE]);
    label(ns, "enabled");
    let said = until_event(ns, "ClusterRoleMissing").await;
    assert!(ns.find(&binding()).await.is_none(), "{said}");
    apply(&[role()]);
    until_bound(ns).await;
}

#[tokio::test]
async fn killed_leader_is_replaced_and_objects_converge() {
    install();
    let ns = &scenario("kill", &[]).await;
    for _ in 0..3 {
        let holder = kill_leader(ns).await;
        label(ns, "enabled");
        until_bound(ns).await;
        ns.until("another leader", async || leader().await.filter(|next| *next != holder)).await;
        label(ns, "disabled");
        until_unbound(ns).await;
    }
    wait_for_controller();
}

#[tokio::test]
async fn restarted_api_server_leaves_objects_converging() {
    install();
    let ns = &scenario("away", &[]).await;
    label(ns, "enabled");
    restart("kube-apiserver");
    until_bound(ns).await;
    label(ns, "disabled");
    until_unbound(ns).await;
    wait_for_controller();
}

#[tokio::test]
async fn vanished_leader_is_replaced_after_its_lease() {
    install();
    let ns = &scenario("vanished", &[]).await;
    ns.until("a leader", leader).await;
    let patch = r#"--patch={"spec":{"holderIdentity":"vanished"}}"#;
    kubectl(&["-n", CONTROLLER.0, "patch", "lease", CONTROLLER.1, "--type=merge", patch]);
    label(ns, "enabled");
    let began = Instant::now();
    let next = ns.until("another leader", async || leader().await.filter(|next| next != "vanished")).await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(10) && took < Duration::from_secs(30), "{next} took over after {took:?}");
    until_bound(ns).await;
}

#[tokio::test]
async fn deleted_profile_leaves_no_object_and_no_error() {
    install();
    let scale = |replicas: &str| {
        let replicas = format!("--replicas={replicas}");
        kubectl(&["-n", CONTROLLER.0, "scale", "deployment", CONTROLLER.1, &replicas]);
        wait_for_controller();
    };
    let gone = scenario("gone", &[TENANT]).await;
    let name = gone.name().to_owned();
    until_bound(&gone).await;
    scale("0");
    drop(gone);
    wait_for_removal(&name);
    let ns = &scenario("comes", &[TENANT]).await;
    scale("2");
    until_bound(ns).await;
    let holder = ns.until("a leader", leader).await;
    let path = format!("/api/v1/namespaces/{}/pods/{holder}:8080/proxy/metrics", CONTROLLER.0);
    let metrics = kubectl(&["get", "--raw", &path]);
    assert!(metrics.contains("istio_aux_tenancy_reconciliations_total{result=\"failed\"} 0"), "{metrics}");
}
