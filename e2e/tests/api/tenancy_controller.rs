//! The tenancy controller: the rights of its account, the objects that it keeps and leaves alone, and that it converges.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use e2e::command::{printed, run, run_offline};
use e2e::install_methods::BINARY;
use e2e::kubectl::{Applied, kubectl, wait_for_removal};
use e2e::rights::{assert_rules, rules};
use e2e::saved::{Saved, until_end_or_signal};
use e2e::scenario;
use e2e::tenancy::{
    CONTROLLER, ROLE, TENANT, binding, install, is_found, kill_leader, kubeflows_edit_role, leader, name_accounts,
    set_tenancy, until_bound, until_event, until_unbound, wait_for_controller,
};
use serde_json::{Value, json};

/// Returns the names of a binding's subjects.
fn accounts(binding: &Value) -> Vec<&str> {
    let subjects = binding["subjects"].as_array().expect("it has subjects");
    subjects.iter().filter_map(|subject| subject["name"].as_str()).collect()
}

#[tokio::test]
async fn controllers_account_may_only_keep_its_objects() {
    install();
    let expected = [
        "create events.k8s.io/events []",
        "create kubeflow.org/poddefaults []",
        "create rbac.authorization.k8s.io/rolebindings []",
        "get,bind rbac.authorization.k8s.io/clusterroles [istio-aux-pipelines]",
        "get,patch,delete kubeflow.org/poddefaults [access-ml-pipeline]",
        "get,patch,delete rbac.authorization.k8s.io/rolebindings [istio-aux-pipelines]",
        "list,watch /namespaces []",
    ];
    let mut here = expected.to_vec();
    here.extend(["create coordination.k8s.io/leases []", "get,patch coordination.k8s.io/leases [istio-aux-tenancy]"]);
    here.sort_unstable();
    assert_rules(CONTROLLER.0, CONTROLLER.1, &here, &expected).await;
}

/// Returns the `RoleBinding` and the `PodDefault` of a namespace, as the command line prints them.
fn objects(namespace: &str) -> [Value; 2] {
    let text = printed(&run_offline(BINARY, &["tenant-objects", namespace, "--accounts=trainer"]));
    let objects: Vec<Value> = serde_saphyr::from_str_multiple(&text).expect("the objects are YAML");
    objects.try_into().expect("there are two")
}

fn bind(namespace: &str) -> Value {
    let [binding, _] = objects(namespace);
    binding
}

fn pod_default(namespace: &str) -> Value {
    let [_, pod_default] = objects(namespace);
    pod_default
}

/// Lets the controller's account do this to an object without changing it. Returns the API server's words if that is rejected.
fn rejection(words: &[&str], object: &Value) -> Option<String> {
    let account = format!("--as=system:serviceaccount:{}:{}", CONTROLLER.0, CONTROLLER.1);
    let words = [words, &["--dry-run=server", &account, "--filename=-"]].concat();
    let tried = run("kubectl", &words, &object.to_string());
    (!tried.status.success()).then(|| String::from_utf8_lossy(&tried.stderr).into_owned())
}

const CREATE: &[&str] = &["create"];
/// As the controller itself applies, over what others have applied too.
const FORCE: &[&str] = &["apply", "--server-side", "--force-conflicts", "--field-manager=istio-aux-tenancy"];

/// Merges a change into an object.
fn changed(mut object: Value, change: &Value) -> Value {
    json_patch::merge(&mut object, change);
    object
}

/// Returns objects that the account could create by RBAC alone, in a namespace that names the account `trainer` and in one without the
/// label, and what the policy says to each.
fn attacks(here: &str, plain: &str) -> Vec<(&'static str, Value, &'static str)> {
    let subject = |subject: &Value| changed(bind(here), &json!({"subjects": [subject]}));
    let code = json!({"spec": {"selector": {}, "initContainers": [{"name": "theirs", "image": "theirs"}]}});
    let named = |object: Value| changed(object, &json!({"metadata": {"name": "other"}}));
    vec![
        ("a namespace without the label", bind(plain), "only in namespaces with the label"),
        ("PodDefault there", pod_default(plain), "only in namespaces with the label"),
        ("another name", named(bind(here)), "writes only RoleBinding istio-aux-pipelines"),
        ("PodDefault of another name", named(pod_default(here)), "writes only RoleBinding istio-aux-pipelines"),
        ("a user", subject(&json!({"kind": "User", "name": "me"})), "only service accounts of the same namespace"),
        ("a group", subject(&json!({"kind": "Group", "name": "system:authenticated"})), "only service accounts"),
        (
            "another namespace's account",
            subject(&json!({"kind": "ServiceAccount", "name": "default", "namespace": "default"})),
            "only service accounts of the same namespace",
        ),
        (
            "an account that is not named",
            subject(&json!({"kind": "ServiceAccount", "name": "default", "namespace": here})),
            "which names them",
        ),
        (
            "a finalizer, for ever",
            changed(bind(here), &json!({"metadata": {"finalizers": ["example.com/kept"]}})),
            "sets no finalizers",
        ),
        (
            "a contributor of the profile",
            changed(bind(here), &json!({"metadata": {"annotations": {"user": "me", "role": "admin"}}})),
            "by which Kubeflow finds contributors",
        ),
        ("code in every pod", changed(pod_default(here), &code), "the PodDefault of Kubeflow's documentation only"),
    ]
}

#[tokio::test]
async fn stolen_token_writes_no_other_object() {
    install();
    let (ns, plain) = (&scenario("labelled", &[]).await, &scenario("plain", &[]).await);
    // The controller itself waits for the label's value, which is not its own yet.
    name_accounts(ns, "trainer");
    set_tenancy(ns, "enabled");
    until_bound(ns).await;
    ns.delete(&binding()).await;
    let theirs = &scenario("theirs", &[]).await;
    let here = ns.name();
    let attacks = attacks(here, plain.name());
    ns.until("the policy", async || rejection(CREATE, &attacks[2].1)).await;
    for (attack, object, expected) in &attacks {
        let rejected = rejection(CREATE, object).unwrap_or_else(|| panic!("{attack} was admitted"));
        assert!(rejected.contains(expected), "{attack}: {rejected}");
    }
    // Only those roles that it may bind, by Kubernetes' own rule.
    let admin = changed(bind(here), &json!({"roleRef": {"name": "cluster-admin"}}));
    let rejected = rejection(CREATE, &admin).expect("it may not bind that role");
    assert!(rejected.contains("attempting to grant RBAC permissions not currently held"), "{rejected}");
    // Namespaces in which nothing is written, whatever their labels are.
    for namespace in ["kube-system", CONTROLLER.0] {
        kubectl(&["label", "namespace", namespace, "istio-aux.io/tenancy=enabled"]);
        let rejected = rejection(CREATE, &bind(namespace));
        kubectl(&["label", "namespace", namespace, "istio-aux.io/tenancy-"]);
        assert!(rejected.is_some_and(|text| text.contains("tenancy.excludedNamespaces")), "{namespace}");
    }
    // Others' objects of these names.
    theirs.create_object(bind(theirs.name())).await;
    name_accounts(theirs, "trainer");
    set_tenancy(theirs, "enabled");
    assert!(until_event(theirs, "RoleBindingNotManaged").await.contains("left unchanged"));
    let rejected = rejection(FORCE, &bind(theirs.name())).expect("it is somebody else's");
    assert!(rejected.contains("only what it has applied itself"), "{rejected}");
    let rejected = rejection(&["delete"], &bind(theirs.name())).expect("it is somebody else's");
    assert!(rejected.contains("only what it has applied itself"), "{rejected}");
    // What the controller itself writes is admitted. Without the policy, so are the attacks.
    ns.delete(&pod_default(here)).await;
    for object in [bind(here), pod_default(here)] {
        assert_eq!(rejection(CREATE, &object), None);
    }
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "istio-aux-tenancy"},
    });
    let saved = Saved::save(&policy).await;
    let admitted = until_end_or_signal(async || {
        kubectl(&["delete", "validatingadmissionpolicybinding", "istio-aux-tenancy"]);
        for (attack, object, _) in &attacks {
            plain.until(attack, async || rejection(CREATE, object).is_none().then_some(())).await;
        }
    })
    .await;
    saved.restore().await;
    admitted.unwrap_or_else(|panic| resume_unwind(panic));
}

#[tokio::test]
async fn label_alone_gives_no_account_any_right() {
    install();
    let kubeflows =
        (!is_found("clusterrole", "kubeflow-pipelines-edit")).then(|| Applied::new(&[kubeflows_edit_role()]));
    let ns = &scenario("nobody", &[]).await;
    let before = rules(ns.name(), "default", ns.name()).await;
    set_tenancy(ns, "enabled");
    assert!(until_event(ns, "NobodyNamed").await.contains("annotate the namespace"));
    assert!(ns.find(&binding()).await.is_none());
    assert_eq!(rules(ns.name(), "default", ns.name()).await, before);

    // Named, it may submit and read runs, and create no Workflow, which would run pods as any account of the namespace.
    name_accounts(ns, "default");
    until_bound(ns).await;
    let mut with_runs = before.clone();
    with_runs.extend([
        "create,get,list pipelines.kubeflow.org/experiments []".to_owned(),
        "create,get,list,readArtifact pipelines.kubeflow.org/runs []".to_owned(),
        "get,list pipelines.kubeflow.org/pipelines,pipelines/versions []".to_owned(),
    ]);
    with_runs.sort_unstable();
    assert_eq!(rules(ns.name(), "default", ns.name()).await, with_runs);

    // A role that the installation does not permit takes the binding, rather than to leave another than was asked for.
    kubectl(&["annotate", "namespace", ns.name(), "istio-aux.io/pipelines-role=kubeflow-pipelines-edit"]);
    let said = until_event(ns, "RoleNotPermitted").await;
    assert!(said.contains("ClusterRole kubeflow-pipelines-edit is not one that istio-aux may bind"), "{said}");
    until_unbound(ns).await;
    drop(kubeflows);
}

#[tokio::test]
async fn profile_has_its_objects_while_labeled() {
    install();
    let ns = &scenario("objects", &[]).await;
    name_accounts(ns, "default");
    set_tenancy(ns, "enabled");
    let bound = until_bound(ns).await;
    assert_eq!(accounts(&bound), ["default"]);
    assert_eq!(bound["roleRef"]["name"], ROLE);
    assert!(until_event(ns, "Reconciled").await.contains("applied RoleBinding istio-aux-pipelines"));
    ns.until("the PodDefault", async || ns.find(&pod_default(ns.name())).await).await;

    // Others' annotations and finalizers stay, and keep nobody bound.
    let on_binding = |words: &[&str]| kubectl(&[&["-n", ns.name()], words].concat());
    let finalizers = |list: &str| format!(r#"--patch={{"metadata":{{"finalizers":{list}}}}}"#);
    let patch = |finalizers: &str| on_binding(&["patch", "rolebinding", ROLE, "--type=merge", finalizers]);
    on_binding(&["annotate", "rolebinding", ROLE, "user=me"]);
    patch(&finalizers(r#"["example.com/kept"]"#));
    name_accounts(ns, "trainer,default-editor");
    ns.until("both accounts", async || {
        (accounts(&ns.get(&binding()).await) == ["trainer", "default-editor"]).then_some(())
    })
    .await;

    // Whatever is not "enabled" takes the rights away.
    set_tenancy(ns, "false");
    let said = until_event(ns, "Refused").await;
    assert_eq!(said, "not deleted RoleBinding istio-aux-pipelines: it has finalizers: example.com/kept");
    patch(&finalizers("null"));
    until_unbound(ns).await;
    let said = until_event(ns, "InvalidValue").await;
    assert_eq!(said, "label istio-aux.io/tenancy: invalid value \"false\"; use enabled or disabled");
}

#[tokio::test]
async fn printed_objects_are_left_alone() {
    install();
    let ns = &scenario("printed", &[]).await;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects(ns.name())}).to_string();
    printed(&run("kubectl", &["apply", "--server-side", "--filename=-"], &list));
    let before = ns.get(&binding()).await;
    set_tenancy(ns, "enabled");
    name_accounts(ns, "other");
    assert!(until_event(ns, "RoleBindingNotManaged").await.contains("left unchanged"));
    let other = &scenario("applied", &[TENANT]).await;
    name_accounts(other, "trainer");
    until_bound(other).await;
    set_tenancy(ns, "disabled");
    // The controller gets to the change before this one first.
    set_tenancy(other, "disabled");
    until_unbound(other).await;
    assert_eq!(ns.get(&binding()).await, before);
}

#[tokio::test]
async fn refusal_is_an_event_and_keeps_nothing_else_away() {
    install();
    let ns = &scenario("refused", &[]).await;
    let _denied = Applied::new(&denies_bindings(ns.name()));
    let try_it = ["-n", ns.name(), "create", "rolebinding", "x", "--clusterrole=view", "--user=x", "--dry-run=server"];
    ns.until("the policy", async || (!run("kubectl", &try_it, "").status.success()).then_some(())).await;
    name_accounts(ns, "trainer");
    set_tenancy(ns, "enabled");
    let said = until_event(ns, "Refused").await;
    assert!(
        said.contains("not applied RoleBinding istio-aux-pipelines: ") && said.contains("no bindings here"),
        "{said}"
    );
    ns.until("the PodDefault", async || ns.find(&pod_default(ns.name())).await).await;
}

/// Returns a policy of somebody else's that denies bindings in a namespace.
fn denies_bindings(namespace: &str) -> [Value; 2] {
    let rule = json!({"apiGroups": ["rbac.authorization.k8s.io"], "apiVersions": ["v1"], "resources": ["rolebindings"], "operations": ["CREATE"]});
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": namespace},
            "spec": {
                "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
                "validations": [{"expression": "false", "message": "no bindings here"}],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": namespace},
            "spec": {"policyName": namespace, "validationActions": ["Deny"]},
        }),
    ]
}

#[tokio::test]
async fn deleted_lease_is_created_again() {
    install();
    let ns = &scenario("lease", &[]).await;
    ns.until("a leader", leader).await;
    kubectl(&["-n", CONTROLLER.0, "delete", "lease", CONTROLLER.1]);
    ns.until("a leader by a new Lease", async || if is_lease_there() { leader().await } else { None }).await;
    name_accounts(ns, "trainer");
    set_tenancy(ns, "enabled");
    until_bound(ns).await;
}

fn is_lease_there() -> bool {
    !kubectl(&["-n", CONTROLLER.0, "get", "lease", CONTROLLER.1, "--ignore-not-found", "--output=name"]).is_empty()
}

#[tokio::test]
async fn killed_leader_is_replaced_and_objects_converge() {
    install();
    let ns = &scenario("kill", &[]).await;
    name_accounts(ns, "trainer");
    for _ in 0..3 {
        let holder = kill_leader(ns).await;
        set_tenancy(ns, "enabled");
        until_bound(ns).await;
        ns.until("another leader", async || leader().await.filter(|next| *next != holder)).await;
        set_tenancy(ns, "disabled");
        until_unbound(ns).await;
    }
    wait_for_controller();
}

#[tokio::test]
async fn vanished_leader_is_replaced_after_its_lease() {
    install();
    let ns = &scenario("vanished", &[]).await;
    name_accounts(ns, "trainer");
    ns.until("a leader", leader).await;
    let patch = r#"--patch={"spec":{"holderIdentity":"vanished"}}"#;
    let began = Instant::now();
    kubectl(&["-n", CONTROLLER.0, "patch", "lease", CONTROLLER.1, "--type=merge", patch]);
    set_tenancy(ns, "enabled");
    let next = ns.until("another leader", async || leader().await.filter(|next| next != "vanished")).await;
    let took = began.elapsed();
    assert!(took > Duration::from_secs(10), "{next} took over after {took:?}, before the lease's end");
    until_bound(ns).await;
}

#[tokio::test]
async fn deleted_profile_leaves_no_object_and_no_error() {
    install();
    let gone = scenario("gone", &[TENANT]).await;
    name_accounts(&gone, "trainer");
    let name = gone.name().to_owned();
    until_bound(&gone).await;
    let holder = leader().await.expect("it has bound");
    let failures = || {
        let path = format!("/api/v1/namespaces/{}/pods/{holder}:8080/proxy/metrics", CONTROLLER.0);
        let metrics = kubectl(&["get", "--raw", &path]);
        let failed =
            metrics.lines().find(|line| line.starts_with("istio_aux_tenancy_reconciliations_total{result=\"failed\"}"));
        failed.expect("it is counted").to_owned()
    };
    let before = failures();
    drop(gone);
    wait_for_removal(&name);
    // The same leader has seen the deletion by then.
    let ns = &scenario("comes", &[TENANT]).await;
    name_accounts(ns, "trainer");
    until_bound(ns).await;
    assert_eq!((leader().await.as_ref(), failures()), (Some(&holder), before));
}
