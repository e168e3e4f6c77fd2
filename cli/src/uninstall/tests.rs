//! Removal against a server with recorded answers.

use api::fake::{Answer, Requests, client};
use serde_json::json;

use super::*;

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/rolebindings?";

fn object(kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let version = if kind == "Deployment" { "apps/v1" } else { "admissionregistration.k8s.io/v1" };
    let labels = json!({"app.kubernetes.io/name": "istio-aux"});
    let mut object =
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "uid": "1f", "labels": labels}});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn configuration(name: &str) -> Value {
    let service = json!({"namespace": "aux", "name": "istio-aux"});
    let mut configuration = object("MutatingWebhookConfiguration", name, None);
    configuration["webhooks"] = json!([{"clientConfig": {"service": service}}]);
    configuration
}

/// Returns a `RoleBinding` with the controller's label, which the controller of an installation has applied or somebody else.
fn binding(namespace: &str, manager: &str, installation: &str) -> Value {
    json!({"metadata": {
        "name": "istio-aux-pipelines", "namespace": namespace, "uid": "1f",
        "labels": {MANAGED_BY_LABEL: TENANCY_MANAGER, "istio-aux.io/installation": installation},
        "managedFields": [{"manager": manager, "operation": "Apply"}],
    }})
}

fn deployment(name: &str) -> Value {
    let mut deployment = object("Deployment", name, Some("aux"));
    deployment["spec"] = json!({"selector": {"matchLabels": {"app.kubernetes.io/name": name}}});
    deployment
}

/// Returns the answer with the `ClusterRoleBinding` of an account in namespace `aux`.
fn cluster_binding(name: &str, account: &str) -> Answer {
    let mut binding = object("ClusterRoleBinding", name, None);
    binding["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
    binding["subjects"] = json!([{"namespace": "aux", "name": account}]);
    Answer::ok(&format!("GET {CLUSTER_BINDINGS}/{name}"), binding)
}

/// Returns the answers of a cluster without the configurations, which an earlier run has deleted: these, and those of `installed`.
fn after_first_run(answers: Vec<Answer>) -> Vec<Answer> {
    let none = Answer::list(&format!("GET {CONFIGURATIONS}?"), &[]);
    let gone =
        ["istio-aux", "zz-istio-aux"].map(|name| Answer::failure(&format!("GET {CONFIGURATIONS}/{name}"), 404, ""));
    [none].into_iter().chain(answers).chain(gone).chain(installed(|object| object)).collect()
}

/// Returns the answers of a cluster with both configurations, webhook and controller in namespace `aux`, and three `RoleBindings`,
/// of which one is theirs.
fn installed(change: impl Fn(Value) -> Value) -> Vec<Answer> {
    let bindings =
        [("team", TENANCY_MANAGER, "aux"), ("other", "kubectl", "aux"), ("third", TENANCY_MANAGER, "another")]
            .map(|(namespace, manager, installation)| binding(namespace, manager, installation));
    let mut answers = vec![
        Answer::list(&format!("GET {CONFIGURATIONS}?"), &[configuration("istio-aux"), configuration("zz-istio-aux")]),
        Answer::list(&format!("GET {BINDINGS}"), &bindings),
        Answer::list("GET /api/v1/namespaces/aux/pods?", &[]),
        Answer::list("GET /api/v1/pods?", &[json!({"metadata": {"namespace": "team", "name": "waits"}})]),
        Answer::list("GET /api/v1/namespaces?", &[json!({"metadata": {"name": "beside"}})])
            .to("istio-aux.io%2Fproxy%3Dnode"),
    ];
    for name in ["istio-aux", "zz-istio-aux"] {
        answers.push(Answer::ok(&format!("GET {CONFIGURATIONS}/{name}"), change(configuration(name))));
    }
    for name in ["istio-aux-tenancy", "istio-aux"] {
        let path = format!("GET /apis/apps/v1/namespaces/aux/deployments/{name}");
        answers.push(Answer::ok(&path, change(deployment(name))));
    }
    answers.push(Answer::ok("DELETE", json!({"kind": "Status", "status": "Success"})));
    answers
}

async fn removed(answers: Vec<Answer>) -> (Vec<Deletion>, Plan, Requests) {
    let (client, requests) = client(answers);
    let plan = plan(&client, None).await.unwrap();
    let mut deletions = Vec::new();
    run(&client, &plan, Duration::ZERO, |deletion| deletions.push(deletion)).await.unwrap();
    (deletions, plan, requests)
}

#[tokio::test]
async fn objects_go_in_the_order_in_which_no_pod_is_refused() {
    let (deletions, plan, requests) = removed(installed(|object| object)).await;
    let expected = [
        format!("DELETE {CONFIGURATIONS}/istio-aux"),
        format!("DELETE {CONFIGURATIONS}/zz-istio-aux"),
        "DELETE /apis/apps/v1/namespaces/aux/deployments/istio-aux-tenancy".to_owned(),
        "DELETE /apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/istio-aux-pipelines".to_owned(),
        "DELETE /apis/apps/v1/namespaces/aux/deployments/istio-aux".to_owned(),
    ];
    assert_eq!(requests.writes(), expected);
    assert!(deletions.iter().all(|deletion| deletion.error.is_none()), "{deletions:?}");
    assert_eq!(plan.waiting_pods, ["team/waits"]);
    assert_eq!(plan.next, ["kubectl label namespace beside istio-aux.io/proxy-"]);
    let deletes = requests.bodies().into_iter().filter(|body| body.contains("propagationPolicy"));
    assert!(deletes.into_iter().all(|body| body.contains(r#""uid":"1f""#)), "each deletes what was read");
}

#[tokio::test]
async fn tool_that_keeps_the_objects_is_named() {
    let cases = [
        ("annotations", "argocd.argoproj.io/tracking-id", Some("Argo CD")),
        ("labels", "helm.toolkit.fluxcd.io/name", Some("Flux")),
        ("labels", "team", None),
    ];
    for (field, key, tool) in cases {
        let kept = |mut object: Value| {
            json_patch::merge(&mut object["metadata"], &json!({field: {key: "x"}}));
            object
        };
        let (_, plan, _) = removed(installed(kept)).await;
        let named = plan.kept_by.as_deref().and_then(|text| text.split(" keeps").next());
        assert_eq!(named, tool, "{key}");
    }
}

#[tokio::test]
async fn another_namespace_than_the_installations_is_refused() {
    let of_an_account = after_first_run(vec![cluster_binding("istio-aux", "istio-aux")]);
    for answers in [installed(|object| object), of_an_account] {
        let (client, requests) = client(answers);
        let error = plan(&client, Some("istio-aux".to_owned())).await.unwrap_err().to_string();
        assert!(error.starts_with("the installation is in namespace aux, not in istio-aux; next: "), "{error}");
        assert!(requests.writes().is_empty());
        assert!(plan(&client, Some("aux".to_owned())).await.is_ok());
    }
}

#[tokio::test]
async fn helms_objects_are_left_to_helm_but_what_refuses_pods() {
    let (_, plan, requests) = removed(installed(|mut object| {
        object["metadata"]["annotations"] = json!({RELEASE_NAME: "mine", RELEASE_NAMESPACE: "aux"});
        object
    }))
    .await;
    let writes = requests.writes();
    assert_eq!(writes.len(), 4, "{writes:?}");
    assert!(!writes.iter().any(|line| line.ends_with("deployments/istio-aux")), "{writes:?}");
    let namespaces = "kubectl label namespace beside istio-aux.io/proxy-";
    assert_eq!(plan.next, ["helm uninstall mine --namespace aux", namespaces], "the namespace may have more in it");
}

#[tokio::test]
async fn object_of_the_name_without_the_label_stays() {
    let (_, plan, requests) = removed(installed(|mut object| {
        object["metadata"]["labels"] = json!({});
        object
    }))
    .await;
    assert_eq!(plan.len(), 1, "the controller's RoleBinding");
    assert_eq!(requests.writes().len(), 1);
}

#[tokio::test]
async fn charm_is_left_to_juju() {
    let mut charms = configuration("istio-aux");
    charms["metadata"]["labels"] = json!({"app.juju.is/created-by": "aux"});
    let (client, requests) = client([Answer::list(&format!("GET {CONFIGURATIONS}?"), &[charms])]);
    let error = plan(&client, None).await.unwrap_err().to_string();
    assert_eq!(error, "the installation is a charm's; next: juju remove-application aux");
    assert_eq!(requests.writes(), [""; 0]);
}

#[tokio::test]
async fn unreadable_object_ends_it_before_anything_is_deleted() {
    let refused = Answer::forbidden("GET /apis/apps/v1/namespaces/aux/deployments/istio-aux", "no rights");
    let (client, requests) = client([refused].into_iter().chain(installed(|object| object)));
    let error = api::describe_error(plan(&client, None).await.unwrap_err().as_ref());
    assert_eq!(error, "cannot read Deployment istio-aux: no rights");
    assert_eq!(requests.writes(), [""; 0]);
}

#[tokio::test]
async fn webhook_stays_while_its_configuration_does() {
    let refused = Answer::forbidden(&format!("DELETE {CONFIGURATIONS}/zz-istio-aux"), "no rights");
    let (client, requests) = client([refused].into_iter().chain(installed(|object| object)));
    let plan = plan(&client, None).await.unwrap();
    let mut failed = Vec::new();
    let error = run(&client, &plan, Duration::ZERO, |deletion| failed.extend(deletion.error)).await.unwrap_err();
    let expected = "stopped, because MutatingWebhookConfiguration zz-istio-aux has to go before the rest";
    assert_eq!((error.to_string().as_str(), failed), (expected, vec!["no rights".to_owned()]));
    assert!(!requests.writes().iter().any(|line| line.contains("deployments")), "{:?}", requests.writes());
}

#[tokio::test]
async fn second_run_finds_the_namespace_by_the_binding() {
    let tenancys = Answer::failure(&format!("GET {CLUSTER_BINDINGS}/istio-aux-tenancy"), 404, "");
    let found = cluster_binding("istio-aux", "istio-aux");
    let writes = removed(after_first_run(vec![tenancys, found])).await.2.writes();
    assert!(writes.iter().any(|line| line.ends_with("namespaces/aux/deployments/istio-aux")), "{writes:?}");
    let last = format!("DELETE {CLUSTER_BINDINGS}/istio-aux");
    assert_eq!(writes.last().unwrap(), &last, "the last, so that a third would find it, too");
}

#[tokio::test]
async fn second_run_finds_the_controller_by_its_binding() {
    let answers = vec![
        cluster_binding("istio-aux-tenancy", "mine-tenancy"),
        Answer::failure(&format!("GET {CLUSTER_BINDINGS}/istio-aux"), 404, ""),
        Answer::ok("GET /apis/apps/v1/namespaces/aux/deployments/mine-tenancy", deployment("mine-tenancy")),
    ];
    let writes = removed(after_first_run(answers)).await.2.writes();
    assert_eq!(writes[0], "DELETE /apis/apps/v1/namespaces/aux/deployments/mine-tenancy", "{writes:?}");
}

#[tokio::test]
async fn release_of_another_name_is_known_by_its_chart() {
    let change = |mut object: Value| {
        object["metadata"]["labels"] = json!({"app.kubernetes.io/name": "mine", "helm.sh/chart": "istio-aux-0.1.0"});
        object["metadata"]["annotations"] = json!({RELEASE_NAME: "mine", RELEASE_NAMESPACE: "aux"});
        object
    };
    let listed = ["istio-aux", "zz-istio-aux"].map(|name| change(configuration(name)));
    let controller = change(deployment("mine-tenancy"));
    let mut answers = vec![
        Answer::list(&format!("GET {CONFIGURATIONS}?"), &listed),
        Answer::ok("GET /apis/apps/v1/namespaces/aux/deployments/mine-tenancy", controller),
        Answer::failure("GET /apis/apps/v1/namespaces/aux/deployments/istio-aux", 404, ""),
    ];
    answers.extend(installed(change));
    let writes = removed(answers).await.2.writes();
    assert_eq!(writes[2], "DELETE /apis/apps/v1/namespaces/aux/deployments/mine-tenancy", "{writes:?}");
}

#[tokio::test]
async fn controller_that_goes_on_keeps_tenants_objects() {
    let runs =
        Answer::list("GET /api/v1/namespaces/aux/pods?", &[json!({"metadata": {"namespace": "aux", "name": "c"}})]);
    let (client, requests) = client([runs].into_iter().chain(installed(|object| object)));
    let plan = plan(&client, None).await.unwrap();
    let error = run(&client, &plan, Duration::ZERO, |_| {}).await.unwrap_err().to_string();
    assert!(error.starts_with("pod aux/c still runs after 0ns"), "{error}");
    assert!(!requests.writes().iter().any(|line| line.contains("rolebindings")));
}
