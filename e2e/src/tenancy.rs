//! Profiles of Kubeflow: the controller, a stand-in for the API server of Kubeflow Pipelines, and policies as Kubeflow has them.

use std::sync::Once;

use serde_json::{Value, json};

use crate::Namespace;
use crate::cluster::Label;
use crate::kubectl::{Applied, apply, kubectl, wait_for_rollout};
use crate::manifests::{container, deployment, kind_of_any_object, pod_spec, service};
use crate::rendered::overlay;

/// The namespace, and the Deployment, of the controller.
pub const CONTROLLER: (&str, &str) = ("istio-aux", "istio-aux-tenancy");
const DEPLOYMENT: &str = "deployment/istio-aux-tenancy";
/// Asks for a profile's objects.
pub const TENANT: Label = ("istio-aux.io/tenancy", "enabled");
/// Gives pods the token for pipelines.
pub const TOKEN: Label = ("istio-aux.io/pipelines-token", "enabled");
/// The role that the controller binds by default.
pub const ROLE: &str = "istio-aux-pipelines";

/// Installs the controller, once, and waits until it runs with the image that is loaded.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        if !is_found("customresourcedefinition", "poddefaults.kubeflow.org") {
            apply(&[kind_of_any_object("kubeflow.org", "v1alpha1", "PodDefault")]);
        }
        apply(&overlay("overlays/tenancy").into_values().collect::<Vec<_>>());
        kubectl(&["-n", CONTROLLER.0, "rollout", "restart", DEPLOYMENT]);
        wait_for_controller();
    });
}

/// Waits until the controller's pods are ready.
pub fn wait_for_controller() {
    wait_for_rollout(CONTROLLER.0, DEPLOYMENT);
}

/// Returns the controller's pod that holds the lease.
pub async fn leader() -> Option<String> {
    let words = ["-n", CONTROLLER.0, "get", "lease", CONTROLLER.1, "--output=jsonpath={.spec.holderIdentity}"];
    Some(kubectl(&words)).filter(|holder| !holder.is_empty())
}

/// Kills the controller's pod that holds the lease, and returns its name.
pub async fn kill_leader(ns: &Namespace) -> String {
    let holder = ns.until("a leader", leader).await;
    kubectl(&["-n", CONTROLLER.0, "delete", "pod", &holder, "--grace-period=0", "--force", "--wait=false"]);
    holder
}

/// Waits for an event of this reason about the namespace, and returns its message.
pub async fn until_event(ns: &Namespace, reason: &str) -> String {
    ns.until_event("Namespace", reason).await
}

/// Returns true if the cluster has the object.
pub fn is_found(kind: &str, name: &str) -> bool {
    !kubectl(&["get", kind, name, "--ignore-not-found", "--output=name"]).is_empty()
}

/// Returns what Kubeflow Pipelines' own role for editors allows by the API server of Kubernetes (kubeflow/manifests,
/// multi-user/view-edit-cluster-roles.yaml): who may create a Workflow may run pods as any account of the namespace.
pub fn kubeflows_edit_role() -> Value {
    let argo = ["workflows", "cronworkflows", "workflowtemplates", "workfloweventbindings", "workflowtaskresults"];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "kubeflow-pipelines-edit"},
        "rules": [
            {"apiGroups": ["argoproj.io"], "resources": argo, "verbs": ["*"]},
            {"apiGroups": ["kubeflow.org"], "resources": ["scheduledworkflows"], "verbs": ["*"]},
        ],
    })
}

/// Creates the stand-in, in the mesh, with the policy that Kubeflow Pipelines ships for its own server. Returns what is not deleted
/// with its namespace.
#[must_use]
pub fn stand_in(namespace: &str) -> Applied {
    let mut server = container("ml-pipeline", &["httpd", "-f", "-p", "8888", "-h", "/srv"]);
    server["volumeMounts"] = json!([{"name": "program", "mountPath": "/srv/cgi-bin"}]);
    server["readinessProbe"] = json!({"tcpSocket": {"port": 8888}, "periodSeconds": 1});
    let mut spec = pod_spec("Always", &[server]);
    spec["serviceAccountName"] = json!("ml-pipeline");
    spec["volumes"] = json!([{"name": "program", "configMap": {"name": "stand-in", "defaultMode": 0o755}}]);
    let binding = Applied::new(&[json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": format!("{namespace}-reviews")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
        "subjects": [{"kind": "ServiceAccount", "name": "ml-pipeline", "namespace": namespace}],
    })]);
    let mut objects = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ml-pipeline"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stand-in"}, "data": {"runs": include_str!("../stand-ins/pipelines-api-server.sh")}}),
        service("ml-pipeline", 8888, 8888),
        deployment("ml-pipeline", &spec),
        ml_pipeline_policy(),
    ];
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(namespace);
    }
    apply(&objects);
    binding
}

/// Returns the policy for ml-pipeline of Kubeflow Pipelines' multi-user installation (kubeflow/manifests,
/// multi-user/istio-authorization-config.yaml): it admits its own components, who has a token that Istio trusts, and requests without
/// the header `kubeflow-userid`.
fn ml_pipeline_policy() -> Value {
    let principal = |account: &str| format!("cluster.local/ns/kubeflow/sa/{account}");
    let accounts = [
        "ml-pipeline",
        "ml-pipeline-ui",
        "ml-pipeline-persistenceagent",
        "ml-pipeline-scheduledworkflow",
        "ml-pipeline-viewer-crd-service-account",
        "kubeflow-pipelines-cache",
    ];
    json!({
        "apiVersion": "security.istio.io/v1beta1", "kind": "AuthorizationPolicy", "metadata": {"name": "ml-pipeline"},
        "spec": {
            "selector": {"matchLabels": {"app": "ml-pipeline"}},
            "rules": [
                {"from": [{"source": {"principals": accounts.map(principal)}}]},
                {"from": [{"source": {"requestPrincipals": ["*"]}}]},
                {"when": [{"key": "request.headers[kubeflow-userid]", "notValues": ["*"]}]},
            ],
        },
    })
}

/// Returns the objects that the profile controller makes of a profile, its namespace among them.
pub fn profile(namespace: &str) -> Vec<Value> {
    let text = include_str!("../stand-ins/profile.yaml").replace("NAMESPACE", namespace);
    serde_saphyr::from_str_multiple(&text).expect("the objects are YAML")
}

/// Returns an `EnvoyFilter` as platforms of 2020 had: it adds the header `kubeflow-userid` to the requests of workloads.
pub fn header_filter(stand_in: &str) -> Value {
    let host = format!("ml-pipeline.{stand_in}.svc.cluster.local:8888");
    json!({
        "apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "metadata": {"name": "add-user"},
        "spec": {"configPatches": [{
            "applyTo": "VIRTUAL_HOST",
            "match": {"context": "SIDECAR_OUTBOUND", "routeConfiguration": {"vhost": {"name": host}}},
            "patch": {"operation": "MERGE", "value": {
                "request_headers_to_add": [{"header": {"key": "kubeflow-userid", "value": "owner@example.com"}}],
            }},
        }]},
    })
}

/// Options of curl that send the token as the SDK of Kubeflow Pipelines does.
pub const WITH_TOKEN: &str = r#"-H "Authorization: Bearer $(cat "$KF_PIPELINES_SA_TOKEN_PATH")""#;

/// Returns a script that asks the stand-in for a namespace's runs, and prints the body and the status. `more` are options of
/// curl.
pub fn asks(stand_in: &str, namespace: &str, more: &str) -> String {
    let url = format!("http://ml-pipeline.{stand_in}:8888/cgi-bin/runs?namespace={namespace}");
    format!("curl -sS --max-time 20 -w ' %{{http_code}}' {more} '{url}'")
}

/// Names the service accounts of a namespace that are to be bound.
pub fn name_accounts(ns: &Namespace, accounts: &str) {
    let annotation = format!("istio-aux.io/pipelines-accounts={accounts}");
    kubectl(&["annotate", "namespace", ns.name(), "--overwrite", &annotation]);
}

/// Gives the label by which a namespace asks for its objects this value.
pub fn set_tenancy(ns: &Namespace, value: &str) {
    label(ns, &format!("{}={value}", TENANT.0));
}

/// Labels a namespace.
pub fn label(ns: &Namespace, label: &str) {
    kubectl(&["label", "namespace", ns.name(), "--overwrite", label]);
}

/// Returns the kind and name of the `RoleBinding` that the controller keeps.
pub fn binding() -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "istio-aux-pipelines"}})
}

/// Waits for that binding, and returns it.
pub async fn until_bound(ns: &Namespace) -> Value {
    ns.until("the binding", async || ns.find(&binding()).await).await
}

/// Waits until that binding is gone.
pub async fn until_unbound(ns: &Namespace) {
    ns.until("the binding to go", async || ns.find(&binding()).await.is_none().then_some(())).await;
}
