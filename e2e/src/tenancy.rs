//! Tenants of Kubeflow: the controller, a stand-in for the API server of Kubeflow Pipelines, and policies as Kubeflow has them.

use std::sync::Once;

use serde_json::{Value, json};

use crate::cluster::Label;
use crate::command::{printed, run};
use crate::manifests::{container, deployment, pod_spec};
use crate::rendered::on_top_of;

/// The namespace, and the Deployment, of the controller.
pub const CONTROLLER: (&str, &str) = ("istio-aux", "istio-aux-tenancy");
/// Asks for a tenant's objects.
pub const TENANT: Label = ("istio-aux.io/tenancy", "enabled");
/// Gives pods the token for pipelines.
pub const TOKEN: Label = ("istio-aux.io/pipelines-token", "enabled");
/// The role of Kubeflow that the controller binds.
pub const ROLE: &str = "kubeflow-pipelines-edit";

/// Runs kubectl, and returns what it printed.
#[expect(clippy::must_use_candidate, reason = "most of its commands are run for what they do")]
pub fn kubectl(words: &[&str]) -> String {
    printed(&run("kubectl", words, ""))
}

/// Creates objects, or makes them like these.
pub fn apply(objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    drop(printed(&run("kubectl", &["apply", "--server-side", "--force-conflicts", "--filename=-"], &list)));
}

/// Installs the controller, once, and waits until it runs with the image that is loaded.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let objects = on_top_of("tenancy-alone", "self-signed", "components: [../../deploy/components/tenancy]");
        let of_controller: Vec<Value> =
            objects.into_iter().filter(|(name, _)| name.ends_with(CONTROLLER.1)).map(|(_, object)| object).collect();
        apply(&of_controller);
        apply(&[role()]);
        let deployment = format!("deployment/{}", CONTROLLER.1);
        kubectl(&["-n", CONTROLLER.0, "rollout", "restart", &deployment]);
        wait_for_controller();
    });
}

/// Waits until the controller's pods are ready.
pub fn wait_for_controller() {
    let deployment = format!("deployment/{}", CONTROLLER.1);
    kubectl(&["-n", CONTROLLER.0, "rollout", "status", &deployment, "--timeout=150s"]);
}

/// Kubeflow Pipelines' role, with the rights that the stand-in asks about.
#[must_use]
pub fn role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ROLE},
        "rules": [{"apiGroups": ["pipelines.kubeflow.org"], "resources": ["runs"], "verbs": ["get", "list", "create"]}],
    })
}

/// The stand-in's program.
const STAND_IN: &str = r#"#!/bin/sh
# A stand-in for the API server of Kubeflow Pipelines, and not that server: it decides as that one does, by a TokenReview for
# its audience and a SubjectAccessReview for the namespace that is asked for, and lists nothing.
account=/var/run/secrets/kubernetes.io/serviceaccount
answer() {
  printf 'Status: %s\r\nContent-Type: text/plain\r\n\r\nstand-in: %s\n' "$1" "$2"
  exit 0
}
review() {
  curl -sS --max-time 10 --cacert $account/ca.crt -H "Authorization: Bearer $(cat $account/token)" \
    -H 'Content-Type: application/json' -d "$2" "https://kubernetes.default.svc/apis/$1" | tr -d ' \n'
}
token=${HTTP_AUTHORIZATION#Bearer }
[ -n "$token" ] || answer '401 Unauthorized' 'there is no token'
reviewed=$(review authentication.k8s.io/v1/tokenreviews \
  '{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"'"$token"'","audiences":["pipelines.kubeflow.org"]}}')
case $reviewed in
  *'"authenticated":true'*) ;;
  *) answer '401 Unauthorized' 'the token is not for this server' ;;
esac
user=$(printf %s "$reviewed" | sed 's/.*"username":"\([^"]*\)".*/\1/')
namespace=${QUERY_STRING#namespace=}
allowed=$(review authorization.k8s.io/v1/subjectaccessreviews \
  '{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"'"$user"'","resourceAttributes":{"group":"pipelines.kubeflow.org","resource":"runs","verb":"list","namespace":"'"$namespace"'"}}}')
case $allowed in
  *'"allowed":true'*) answer '200 OK' "runs of $namespace for $user" ;;
  *) answer '403 Forbidden' "$user may not list runs of $namespace" ;;
esac
"#;

/// The stand-in, in the mesh, with the policy that Kubeflow Pipelines ships for its own server.
#[must_use]
pub fn stand_in(namespace: &str) -> Vec<Value> {
    let mut server = container("ml-pipeline", &["httpd", "-f", "-p", "8888", "-h", "/srv"]);
    server["volumeMounts"] = json!([{"name": "program", "mountPath": "/srv/cgi-bin"}]);
    server["readinessProbe"] = json!({"tcpSocket": {"port": 8888}, "periodSeconds": 1});
    let mut spec = pod_spec("Always", &[server]);
    spec["serviceAccountName"] = json!("ml-pipeline");
    spec["volumes"] = json!([{"name": "program", "configMap": {"name": "stand-in", "defaultMode": 0o755}}]);
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ml-pipeline"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stand-in"}, "data": {"runs": STAND_IN}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": reviewer(namespace)},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
            "subjects": [{"kind": "ServiceAccount", "name": "ml-pipeline", "namespace": namespace}],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "ml-pipeline"},
            "spec": {"selector": {"app": "ml-pipeline"}, "ports": [{"name": "http", "port": 8888}]},
        }),
        deployment("ml-pipeline", &spec),
        ml_pipeline_policy(),
    ];
    for object in objects.iter_mut().filter(|object| object["kind"] != "ClusterRoleBinding") {
        object["metadata"]["namespace"] = json!(namespace);
    }
    objects
}

/// The name of the stand-in's `ClusterRoleBinding`, which does not go with its namespace.
#[must_use]
pub fn reviewer(namespace: &str) -> String {
    format!("{namespace}-reviews")
}

/// The policy for ml-pipeline of Kubeflow Pipelines' installation for many users: its own components, and everybody who does
/// not say by a header who he is.
fn ml_pipeline_policy() -> Value {
    let principal = |account: &str| format!("cluster.local/ns/kubeflow/sa/{account}");
    let accounts = ["ml-pipeline", "ml-pipeline-ui", "ml-pipeline-persistenceagent", "ml-pipeline-scheduledworkflow"];
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "ml-pipeline"},
        "spec": {
            "selector": {"matchLabels": {"app": "ml-pipeline"}},
            "rules": [
                {"from": [{"source": {"principals": accounts.map(principal)}}]},
                {"when": [{"key": "request.headers[kubeflow-userid]", "notValues": ["*"]}]},
            ],
        },
    })
}

/// The policy that the profile controller gives a profile's namespace: its owner by the gateway, and its own workloads.
#[must_use]
pub fn profile_policy(namespace: &str) -> Value {
    let gateway = "cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account";
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "ns-owner-access-istio", "namespace": namespace},
        "spec": {"action": "ALLOW", "rules": [
            {
                "from": [{"source": {"principals": [gateway, "cluster.local/ns/kubeflow/sa/ml-pipeline-ui"]}}],
                "when": [{"key": "request.headers[kubeflow-userid]", "values": ["owner@example.com"]}],
            },
            {"when": [{"key": "source.namespace", "values": [namespace]}]},
            {"to": [{"operation": {"paths": ["/healthz", "/metrics", "/wait-for-drain"]}}]},
        ]},
    })
}

/// An `EnvoyFilter` as platforms of 2020 had: it says who the caller is, in his name.
#[must_use]
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
