//! Runs the controller against an API server with recorded answers.

use std::sync::atomic::AtomicUsize;

use api::fake::{Answer, Requests, client};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const ROLE: &str = "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/istio-aux-pipelines";
const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/istio-aux-pipelines";
const POD_DEFAULT: &str = "/apis/kubeflow.org/v1alpha1/namespaces/team/poddefaults/access-ml-pipeline";
const EVENTS: &str = "POST /apis/events.k8s.io/v1/namespaces/team/events";

fn object() -> Value {
    json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}})
}

/// Returns an object as the API server has it after this controller has applied it.
fn bound() -> Value {
    let mut bound = inject::tenancy::objects::labelled(object(), "istio-aux");
    bound["metadata"]["uid"] = json!("u");
    bound["metadata"]["managedFields"] = json!([{"manager": "istio-aux-tenancy", "operation": "Apply"}]);
    bound
}

fn context(answers: impl IntoIterator<Item = Answer>) -> (Arc<Context>, Requests) {
    let (client, requests) = client(answers);
    let installation =
        Installation { namespace: "istio-aux".to_owned(), roles: vec!["istio-aux-pipelines".to_owned()] };
    (Context::new(client, installation, "test", Arc::default()), requests)
}

fn namespace(metadata: &Value) -> Arc<NamespaceMeta> {
    let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    object["metadata"]["name"] = json!("team");
    Arc::new(serde_json::from_value(object).unwrap())
}

fn opted_in() -> Arc<NamespaceMeta> {
    let accounts = json!({"istio-aux.io/pipelines-accounts": "trainer"});
    namespace(&json!({"labels": {"istio-aux.io/tenancy": "enabled"}, "annotations": accounts}))
}

fn event() -> Answer {
    Answer::ok(EVENTS, json!({"metadata": {"name": "e"}, "eventTime": null}))
}

#[tokio::test]
async fn opted_in_namespace_gets_objects_and_event() {
    let answers = [
        Answer::ok(ROLE, object()),
        Answer::ok(&format!("PATCH {BINDING}"), object()),
        Answer::ok(&format!("PATCH {POD_DEFAULT}"), object()),
        event(),
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
async fn value_that_is_not_enabled_takes_the_binding_and_sends_an_event() {
    let answers =
        [Answer::ok(&format!("GET {BINDING}"), bound()), Answer::ok(&format!("DELETE {BINDING}"), json!({})), event()];
    let (context, requests) = context(answers);
    let namespace = namespace(&json!({"labels": {"istio-aux.io/tenancy": "yes"}}));
    assert_eq!(reconcile(namespace, context).await.unwrap(), Requeue::requeue(REFUSED_INTERVAL));
    assert_eq!(requests.writes(), [format!("DELETE {BINDING}"), EVENTS.to_owned(), EVENTS.to_owned()]);
    let body = requests.bodies().pop().unwrap();
    assert!(body.contains("label istio-aux.io/tenancy: invalid value"), "{body}");
}

#[tokio::test]
async fn refused_write_is_said_once_and_the_others_go_on() {
    let refused = || Answer::forbidden(&format!("PATCH {BINDING}"), "admission webhook denied it: no bindings here");
    let answers =
        [Answer::ok(ROLE, object()), refused(), Answer::ok(&format!("PATCH {POD_DEFAULT}"), object()), event()];
    let (context, requests) = context(answers);
    let pauses = [reconcile(opted_in(), context.clone()).await, reconcile(opted_in(), context.clone()).await];
    let [first, second] = pauses.map(Result::unwrap);
    assert_eq!((first, second), (Requeue::requeue(REFUSED_INTERVAL), Requeue::requeue(REFUSED_INTERVAL * 2)));
    let events = requests.writes().into_iter().filter(|line| line.contains("/events")).count();
    // Each check applies the PodDefault, and says so.
    assert_eq!(events, 3, "the rejection is published once: {:?}", requests.all());
    assert!(context.metrics.text().contains("istio_aux_tenancy_refused_namespaces 1"));
    assert!(context.metrics.text().contains("istio_aux_tenancy_failed_namespaces 0"));
}

#[tokio::test]
async fn failed_write_keeps_no_other_from_being_done_and_said() {
    let answers = [
        Answer::ok(ROLE, object()),
        Answer::failure(&format!("PATCH {BINDING}"), 500, "failed calling webhook"),
        Answer::ok(&format!("PATCH {POD_DEFAULT}"), object()),
        event(),
    ];
    let (context, requests) = context(answers);
    assert!(matches!(reconcile(opted_in(), context.clone()).await, Err(CheckError::Api(_))));
    let body = requests.bodies().pop().unwrap();
    assert!(body.contains("applied PodDefault access-ml-pipeline") && !body.contains("RoleBinding"), "{body}");
    // The pause after it is that of failures in a row, whatever else is said.
    back_off(opted_in(), &CheckError::Unanswered, context.clone());
    assert!(reconcile(opted_in(), context.clone()).await.is_err());
    let pause = back_off(opted_in(), &CheckError::Unanswered, context);
    assert_eq!(pause, Requeue::requeue(FAILED_INTERVAL * 2));
}

#[tokio::test]
async fn binding_that_could_not_be_deleted_is_not_applied() {
    let mut bound = bound();
    bound["roleRef"] = json!({"kind": "ClusterRole", "name": "other"});
    let answers = [
        Answer::ok(ROLE, object()),
        Answer::ok(&format!("GET {BINDING}"), bound),
        Answer::failure(&format!("DELETE {BINDING}"), 500, "no"),
        Answer::ok(&format!("PATCH {POD_DEFAULT}"), object()),
    ];
    let (context, requests) = context(answers);
    assert!(reconcile(opted_in(), context).await.is_err());
    let writes = requests.writes();
    assert_eq!(writes[..2], [format!("DELETE {BINDING}"), format!("PATCH {POD_DEFAULT}")], "{writes:?}");
}

#[tokio::test]
async fn refusal_after_warnings_of_another_reason_is_the_first() {
    let refused = Answer::forbidden(&format!("PATCH {BINDING}"), "not in this namespace");
    let (context, requests) = context([Answer::ok(ROLE, object()), refused, event()]);
    let invalid = || namespace(&json!({"labels": {"istio-aux.io/tenancy": "yes"}}));
    for _ in 0..4 {
        reconcile(invalid(), context.clone()).await.unwrap();
    }
    assert_eq!(reconcile(opted_in(), context).await.unwrap(), Requeue::requeue(REFUSED_INTERVAL));
    assert!(!requests.bodies().concat().contains("not in this namespace"), "the API server may not know the label yet");
}

#[tokio::test]
async fn binding_that_waits_for_finalizers_is_not_said_to_be_deleted() {
    let mut waits = bound();
    waits["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    waits["metadata"]["finalizers"] = json!(["example.com/keep"]);
    let answers =
        [Answer::ok(&format!("GET {BINDING}"), bound()), Answer::ok(&format!("DELETE {BINDING}"), waits), event()];
    let (context, requests) = context(answers);
    for pause in [REFUSED_INTERVAL, REFUSED_INTERVAL * 2] {
        assert_eq!(reconcile(namespace(&json!({})), context.clone()).await.unwrap(), Requeue::requeue(pause));
    }
    let body = requests.bodies().pop().unwrap();
    assert!(
        body.contains("not deleted RoleBinding istio-aux-pipelines: it has finalizers: example.com/keep"),
        "{body}"
    );
}

#[tokio::test]
async fn failure_is_retried_with_doubling_pause() {
    let (context, _) = context([Answer::ok(ROLE, object()), Answer::failure("PATCH ", 500, "no")]);
    let error = reconcile(opted_in(), context.clone()).await.unwrap_err();
    let pauses: Vec<Requeue> = (0..3).map(|_| back_off(opted_in(), &error, context.clone())).collect();
    assert_eq!(pauses, [1, 2, 4].map(|seconds| Requeue::requeue(Duration::from_secs(seconds))));
    assert_eq!(pause_after(FAILED_INTERVAL, u32::MAX), BACKOFF_MAX);
    assert!(context.metrics.text().contains(r#"reconciliations_total{result="failed"} 3"#));
    assert!(context.metrics.text().contains("istio_aux_tenancy_failed_namespaces 1"));
}

#[tokio::test(start_paused = true)]
async fn request_without_an_answer_stalls_no_other_namespace() {
    let answers = [Answer::ok(ROLE, object()), Answer::ok("PATCH ", object()), event()];
    let (context, requests) = context(answers);
    requests.never_answer(1);
    let stalled = tokio::spawn(reconcile(opted_in(), context.clone()));
    tokio::task::yield_now().await;
    let other = reconcile(opted_in(), context.clone()).await.unwrap();
    assert_eq!(other, Requeue::requeue(RESYNC_INTERVAL));
    assert!(!stalled.is_finished());
    assert!(matches!(stalled.await.unwrap(), Err(CheckError::Unanswered)));
}

/// As a load balancer that has lost its API server: it takes requests and says nothing.
#[tokio::test]
async fn watch_that_is_not_answered_is_asked_again() {
    let (listener, watches) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), &AtomicUsize::new(0));
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let installation = context([]).0.installation.clone();
    let api = super::client_within(config, Duration::from_secs(1)).unwrap();
    let worker = Worker { context: Context::new(api, installation, "test", Arc::default()) };
    let mut kept = Vec::new();
    let serve = async {
        while watches.load(Ordering::Relaxed) < 3 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let is_watch = String::from_utf8_lossy(&request[..read]).contains("watch=");
            let number = if is_watch { watches.fetch_add(1, Ordering::Relaxed) } else { 0 };
            if number == 1 {
                kept.push(stream);
                continue;
            }
            let list = r#"{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"}, "items": []}"#;
            let body = if is_watch { "" } else { list };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close",
                body.len()
            );
            stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        }
    };
    let asked_again = async {
        tokio::select! {
            () = worker.watch() => panic!("it ended"),
            () = serve => {}
        }
    };
    timeout(Duration::from_mins(1), asked_again).await.expect("it is asked again");
}
