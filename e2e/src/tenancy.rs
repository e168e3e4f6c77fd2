//! Tenants of Kubeflow: the controller, a stand-in for the API server of Kubeflow Pipelines, and policies as Kubeflow has them.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::cluster::Label;
use crate::command::{printed, run};
use crate::manifests::{annotated, container, deployment, job, pod, pod_spec, shell};
use crate::rendered::on_top_of;
use crate::{Namespace, PodView, is_complete};

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
    // The API server validates by itself; kubectl would first fetch the schemas of all kinds.
    let words = ["apply", "--server-side", "--force-conflicts", "--validate=false", "--filename=-"];
    drop(printed(&run("kubectl", &words, &list)));
}

/// Installs the controller, once, and waits until it runs with the image that is loaded.
pub fn install() {
    static IS_INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = IS_INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_installed {
        return;
    }
    apply(&[role()]);
    install_controller("tenancy");
    *is_installed = true;
}

/// Applies the controller's objects as a component has them, and waits until it runs with the image that is loaded.
pub fn install_controller(component: &str) {
    apply(&objects_of_component(component, |name| name.ends_with(CONTROLLER.1)));
    kubectl(&["-n", CONTROLLER.0, "rollout", "restart", &format!("deployment/{}", CONTROLLER.1)]);
    wait_for_controller();
}

/// The objects of the default installation with a component, by their names.
pub fn objects_of_component(component: &str, is_one: impl Fn(&str) -> bool) -> Vec<Value> {
    let rest = format!("components: [../../deploy/components/{component}]");
    let objects = on_top_of(&format!("component-{component}"), "self-signed", &rest).into_iter();
    objects.filter(|(name, _)| is_one(name)).map(|(_, object)| object).collect()
}

/// Waits until the controller's pods are ready.
pub fn wait_for_controller() {
    wait_for_rollout(CONTROLLER.1);
}

/// The pod of the controller that acts.
pub async fn leader() -> Option<String> {
    let words = ["-n", CONTROLLER.0, "get", "lease", CONTROLLER.1, "--output=jsonpath={.spec.holderIdentity}"];
    Some(kubectl(&words)).filter(|holder| !holder.is_empty())
}

/// Kills the pod of the controller that acts, and returns its name.
pub async fn kill_leader(ns: &Namespace) -> String {
    let holder = ns.until("a leader", leader).await;
    kubectl(&["-n", CONTROLLER.0, "delete", "pod", &holder, "--grace-period=0", "--force", "--wait=false"]);
    holder
}

/// Waits until a Deployment of istio-aux runs as it is specified now.
pub fn wait_for_rollout(deployment: &str) {
    wait_for_rollout_in(CONTROLLER.0, deployment);
}

/// Waits for an event of this reason about the namespace, and returns what it says.
pub async fn until_event(ns: &Namespace, reason: &str) -> String {
    let selector = format!("--field-selector=reason={reason},involvedObject.kind=Namespace");
    let words = ["-n", ns.name(), "get", "events", &selector, "--output=jsonpath={.items[*].message}"];
    ns.until(&format!("an event {reason}"), async || Some(kubectl(&words)).filter(|text| !text.is_empty())).await
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

/// As the SDK of Kubeflow Pipelines sends its token.
pub const WITH_TOKEN: &str = r#"-H "Authorization: Bearer $(cat "$KF_PIPELINES_SA_TOKEN_PATH")""#;

/// A script that asks the stand-in for a namespace's runs, and prints the body and the status. `more` are options of curl.
#[must_use]
pub fn asks(stand_in: &str, namespace: &str, more: &str) -> String {
    let url = format!("http://ml-pipeline.{stand_in}:8888/cgi-bin/runs?namespace={namespace}");
    format!("curl -sS --max-time 20 -w ' %{{http_code}}' {more} '{url}'")
}

/// A script that asks a server for its page, and prints it and the status.
#[must_use]
pub fn greets(host: &str) -> String {
    format!("curl -sS --max-time 20 -w ' %{{http_code}}' http://{host}/ 2>&1")
}

/// Runs a script until its output matches a pattern of the shell, for a minute, and prints the last output: proxies hear of a
/// new configuration a moment after it is there.
#[must_use]
pub fn until_said(script: &str, pattern: &str) -> String {
    format!(
        "n=0; until said=$({script}); case $said in {pattern}) true;; *) [ $n = 60 ];; esac; do n=$((n + 1)); sleep 1; done; printf %s \"$said\""
    )
}

/// What a pod's container `main` prints until its end.
pub async fn output_of(ns: &Namespace, pod: Value) -> String {
    let name = pod["metadata"]["name"].as_str().expect("a pod has a name").to_owned();
    ns.create_object(pod).await;
    ns.pod_until(&name, "the end", |pod| PodView(pod).final_phase()).await;
    ns.logs(&name, "main").await
}

/// What a script prints in a pod of its own.
pub async fn said(ns: &Namespace, name: &str, script: &str) -> String {
    output_of(ns, pod(name, &pod_spec("Never", &[shell("main", script)]))).await
}

/// What a script prints in a Job whose template keeps Istio's injector away, as the compiler of Kubeflow Pipelines writes it.
/// The Job completes.
pub async fn said_by_job(ns: &Namespace, name: &str, script: &str) -> String {
    let kept_out =
        annotated(job(name, &pod_spec("Never", &[shell("main", script)])), "sidecar.istio.io/inject", "false");
    ns.create_object(kept_out).await;
    ns.until(&format!("Job {name}"), async || is_complete(&ns.job(name).await).then_some(())).await;
    let pod = ns.pod_of_job(name).await;
    ns.logs(&pod, "main").await
}

/// Labels a namespace.
pub fn label(ns: &Namespace, label: &str) {
    kubectl(&["label", "namespace", ns.name(), "--overwrite", label]);
}

/// Waits until a Deployment's pods are ready.
pub fn until_available(ns: &Namespace, deployment: &str) {
    wait_for_rollout_in(ns.name(), deployment);
}

fn wait_for_rollout_in(namespace: &str, deployment: &str) {
    kubectl(&["-n", namespace, "rollout", "status", &format!("deployment/{deployment}"), "--timeout=150s"]);
}

/// The `RoleBinding` that the controller keeps, by its kind and name.
#[must_use]
pub fn binding() -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "istio-aux-pipelines"}})
}

/// Waits for that binding.
pub async fn until_bound(ns: &Namespace) -> Value {
    ns.until("the binding", async || ns.find(&binding()).await).await
}

/// Waits until there is none.
pub async fn until_unbound(ns: &Namespace) {
    ns.until("the binding to go", async || ns.find(&binding()).await.is_none().then_some(())).await;
}
