//! Runs the controller against an API server with recorded answers.

use api::fake::{Answer, Requests, client};
use serde_json::{Value, json};

use super::*;

const ROLE: &str = "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/kubeflow-pipelines-edit";
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/istio-aux-pipelines";
const POD_DEFAULT: &str = "/apis/kubeflow.org/v1alpha1/namespaces/team/poddefaults/access-ml-pipeline";
const EVENTS: &str = "POST /apis/events.k8s.io/v1/namespaces/team/events";

fn object() -> Value {
    json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}})
}

fn context(answers: impl IntoIterator<Item = Answer>) -> (Arc<Context>, Requests) {
    let (client, requests) = client(answers);
    let recorder = Recorder::new(client.clone(), "test".into());
    let metrics = Arc::new(TenancyMetrics::new());
    (Arc::new(Context { client, recorder, metrics, failures: Mutex::default() }), requests)
}

fn namespace(metadata: &Value) -> Arc<NamespaceMeta> {
    let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    object["metadata"]["name"] = json!("team");
    Arc::new(serde_json::from_value(object).unwrap())
}

fn opted_in() -> Arc<NamespaceMeta> {
    namespace(&json!({"labels": {"istio-aux.io/tenancy": "enabled"}}))
}

#[tokio::test]
async fn opted_in_namespace_gets_objects_and_event() {
    let answers = [
        Answer::ok(ROLE, object()),
        Answer::ok(&format!("PATCH {BINDING}"), object()),
        Answer::ok(&format!("PATCH {POD_DEFAULT}"), object()),
        Answer::ok(EVENTS, json!({"metadata": {"name": "e"}, "eventTime": null})),
    ];
    let (context, requests) = context(answers);
    let requeue = reconcile(opted_in(), context.clone()).await.unwrap();
    assert_eq!(requeue, Requeue::requeue(RESYNC_INTERVAL));
    assert_eq!(requests.writes(), [format!("PATCH {BINDING}"), format!("PATCH {POD_DEFAULT}"), EVENTS.to_owned()]);
    let patches: Vec<String> = requests.all().into_iter().filter(|line| line.starts_with("PATCH")).collect();
    assert!(patches.iter().all(|line| line.contains("fieldManager=istio-aux-tenancy")), "{patches:?}");
    assert!(!patches.iter().any(|line| line.contains("force=true")), "nothing is replaced: {patches:?}");
    assert!(context.metrics.text().contains("istio_aux_tenancy_namespaces 1"));
}

#[tokio::test]
async fn cluster_without_pod_defaults_gets_the_binding() {
    let answers = [
        Answer::ok(ROLE, object()),
        Answer::ok(&format!("PATCH {BINDING}"), object()),
        Answer::not_served(&format!("GET {POD_DEFAULT}")),
        Answer::not_served(&format!("PATCH {POD_DEFAULT}")),
    ];
    let (context, requests) = context(answers);
    reconcile(opted_in(), context).await.unwrap();
    assert_eq!(requests.writes()[..2], [format!("PATCH {BINDING}"), format!("PATCH {POD_DEFAULT}")]);
}

#[tokio::test]
async fn terminating_namespace_is_skipped() {
    let (context, requests) = context([]);
    let namespace =
        namespace(&json!({"labels": {"istio-aux.io/tenancy": "enabled"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}));
    assert_eq!(reconcile(namespace, context).await.unwrap(), Requeue::await_change());
    assert!(requests.all().is_empty(), "{:?}", requests.all());
}

#[tokio::test]
async fn namespace_deleted_meanwhile_is_not_a_failure() {
    let terminating = |request: &str| {
        let body = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "is being terminated",
            "details": {"causes": [{"reason": "NamespaceTerminating", "message": "m", "field": "f"}]}});
        Answer::forbidden(request, "").with_body(body)
    };
    let (context, _) = context([Answer::ok(ROLE, object()), terminating("PATCH ")]);
    assert!(reconcile(opted_in(), context).await.is_ok());
}

#[tokio::test]
async fn missing_role_binds_nothing_and_sends_an_event() {
    let (context, requests) = context([]);
    let requeue = reconcile(opted_in(), context.clone()).await.unwrap();
    assert_eq!(requeue, Requeue::requeue(REFUSED_INTERVAL));
    assert_eq!(requests.writes(), [format!("PATCH {POD_DEFAULT}"), EVENTS.to_owned()]);
    assert!(context.metrics.text().contains("istio_aux_tenancy_refused_namespaces 1"));
}

#[tokio::test]
async fn invalid_value_changes_nothing_and_sends_an_event() {
    let (context, requests) = context([]);
    let namespace = namespace(&json!({"labels": {"istio-aux.io/tenancy": "yes"}}));
    assert_eq!(reconcile(namespace, context).await.unwrap(), Requeue::requeue(REFUSED_INTERVAL));
    assert_eq!(requests.all().len(), 1, "{:?}", requests.all());
    assert!(requests.all()[0].starts_with(EVENTS));
}

#[tokio::test]
async fn failure_is_retried_with_doubling_pause() {
    let (context, _) = context([Answer::ok(ROLE, object()), Answer::failure("PATCH ", 500, "no")]);
    let error = reconcile(opted_in(), context.clone()).await.unwrap_err();
    let pauses: Vec<Requeue> = (0..3).map(|_| back_off(opted_in(), &error, context.clone())).collect();
    assert_eq!(pauses, [1, 2, 4].map(|seconds| Requeue::requeue(Duration::from_secs(seconds))));
    assert_eq!(pause_after(u32::MAX), BACKOFF_MAX);
    assert!(context.metrics.text().contains(r#"reconciliations_total{result="failed"} 3"#));
}
