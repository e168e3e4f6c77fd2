//! Explains objects of clusters with recorded answers.

use api::fake::{Answer, Requests, client};

use super::*;
use crate::pods::fixtures::{labelled, stuck_pod};

const JOB: &str = "GET /apis/batch/v1/namespaces/team/jobs/hello";
const NAMESPACE: &str = "GET /api/v1/namespaces/team";
const PODS_OF_JOB: &str = "GET /api/v1/namespaces/team/pods?";
const CREATE: &str = "POST /api/v1/namespaces/team/pods?&dryRun=All";

fn job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "hello", "namespace": "team"},
        "spec": {
            "selector": {"matchLabels": {"job-name": "hello"}},
            "template": {
                "metadata": {"labels": {"job-name": "hello"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}], "nodeName": "n"},
            },
        },
    })
}

fn namespace(labels: &Value) -> Answer {
    Answer::ok(NAMESPACE, labelled("team", labels))
}

fn status(mode: &str) -> Value {
    json!({"istio-aux.io/status": json!({"mode": mode, "reason": "because"}).to_string()})
}

/// Explains an object of the namespace `team` by these answers.
async fn explained(object: &str, answers: impl IntoIterator<Item = Answer>) -> (Result<Explanation>, Requests) {
    let (client, requests) = client(answers);
    let explanation =
        explain(&client, "team", &object.parse().unwrap(), &Selectors::default(), &Settings::new("shim:1")).await;
    (explanation, requests)
}

async fn explain_job(namespace: Answer, dry_run: Answer) -> Explanation {
    let pod = json!({"metadata": {"name": "hello-x", "annotations": status("native")}, "status": {"phase": "Running"}});
    let answers = [dry_run, Answer::ok(JOB, job()), Answer::list(PODS_OF_JOB, &[pod]), namespace];
    let (explanation, requests) = explained("job/hello", answers).await;
    let pods = requests.all().into_iter().find(|line| line.starts_with(PODS_OF_JOB)).unwrap();
    assert!(pods.contains("labelSelector=job-name%3Dhello"), "{pods}");
    explanation.unwrap()
}

#[tokio::test]
async fn job_is_explained_by_pods_and_dry_run() {
    let labels = json!({"istio-aux.io/injection": "enabled", "istio-injection": "enabled"});
    let admitted = json!({"metadata": {"annotations": status("native")}});
    let answer = Answer::ok(CREATE, admitted).warning("299 - \"no container mian\"");
    insta::assert_json_snapshot!(explain_job(namespace(&labels), answer).await);
}

#[tokio::test]
async fn pods_are_found_by_what_their_controller_gives_them() {
    let template = job()["spec"]["template"].clone();
    let training = json!({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "a"},
        "spec": {"mpiReplicaSpecs": {"Worker": {"template": template}}}});
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a", "uid": "1f"},
        "spec": {"jobTemplate": {"spec": {"template": template}}}});
    let owned = |name: &str, uid: &str| json!({"metadata": {"name": name, "ownerReferences": [{"uid": uid}]}});
    let jobs = [owned("a-1", "1f"), owned("b-1", "2b")];
    let jobs = || Answer::list("GET /apis/batch/v1/namespaces/team/jobs?", &jobs);
    let pods = vec![json!({"metadata": {"name": "x"}}); PODS_LIMIT + 1];
    let cases = [
        (
            "mpijob/a",
            Answer::ok("GET /apis/kubeflow.org/v2beta1/namespaces/team/mpijobs/a", training),
            "training.kubeflow.org%2Fjob-name%3Da",
        ),
        (
            "cronjob/a",
            Answer::ok("GET /apis/batch/v1/namespaces/team/cronjobs/a", cron),
            "batch.kubernetes.io%2Fjob-name+in+%28a-1%29",
        ),
    ];
    for (object, answer, selector) in cases {
        let answers = [answer, jobs(), Answer::list(PODS_OF_JOB, &pods), namespace(&json!({}))];
        let (explanation, requests) = explained(object, answers).await;
        let explanation = explanation.unwrap();
        assert_eq!((explanation.pods.len(), explanation.other_pods), (PODS_LIMIT, 1), "{object}");
        let all = requests.all();
        assert!(all.iter().any(|line| line.starts_with(PODS_OF_JOB) && line.contains(selector)), "{all:?}");
    }
}

#[tokio::test]
async fn annotation_of_the_job_itself_is_misplaced() {
    let mut annotated = job();
    annotated["metadata"]["annotations"] = json!({"istio-aux.io/mode": "off", "team": "a"});
    let answers = [Answer::ok(JOB, annotated), Answer::list(PODS_OF_JOB, &[]), namespace(&json!({}))];
    assert_eq!(explained("job/hello", answers).await.0.unwrap().misplaced, ["istio-aux.io/mode"]);
    let job = json!({"metadata": {"annotations": {"istio-aux.io/quit": "a"}}});
    assert_eq!(misplaced(&json!({"spec": {"jobTemplate": job}})), ["istio-aux.io/quit"], "of a CronJob");
}

#[tokio::test]
async fn job_outside_opted_in_namespace_says_so() {
    let explanation = explain_job(namespace(&json!({})), Answer::ok(CREATE, stuck_pod())).await;
    assert_eq!((explanation.opted_in, explanation.in_mesh), (Some(false), Some(false)));
    assert_eq!(explanation.opt_in, OptIn::Missing.describe());
    let reason = OptIn::Missing.describe();
    assert_eq!(explanation.now, [Verdict::NotInjected { reason, has_proxy: true, warnings: Vec::new() }]);
}

#[tokio::test]
async fn rejected_pod_has_the_servers_message() {
    let explanation = explain_job(namespace(&json!({})), Answer::forbidden(CREATE, "exceeded quota")).await;
    assert_eq!(explanation.now, [Verdict::Rejected { message: "exceeded quota".to_owned() }]);
}

#[tokio::test]
async fn forbidden_dry_run_is_decided_locally() {
    let denied = "User \"me\" cannot create resource \"pods\"";
    let explanation = explain_job(namespace(&json!({})), Answer::forbidden(CREATE, denied)).await;
    let [Verdict::Unasked { reason, decision }] = &explanation.now[..] else { panic!("{explanation:?}") };
    assert_eq!(reason, denied);
    assert_eq!(decision.mode, "hold");
}

#[tokio::test]
async fn unreadable_namespace_has_unknown_opt_in() {
    let unreadable = Answer::forbidden(NAMESPACE, "no rights");
    let explanation = explain_job(unreadable, Answer::forbidden(CREATE, "exceeded quota")).await;
    assert_eq!((explanation.opted_in, explanation.in_mesh), (None, None));
    assert_eq!(explanation.opt_in, "cannot read namespaces: no rights");
}

#[tokio::test]
async fn new_pod_uses_the_controllers_template() {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "hello", "controller": true});
    let mut pod_of_job = stuck_pod();
    pod_of_job["metadata"]["ownerReferences"] = json!([owner]);
    let mut shimmed = stuck_pod();
    json_patch::merge(&mut shimmed["metadata"], &json!({"annotations": status("native")}));
    for (pod, is_asked, verdicts) in [(pod_of_job, true, 1), (stuck_pod(), false, 1), (shimmed, false, 0)] {
        let answers = [
            Answer::ok("GET /api/v1/namespaces/team/pods/hello", pod),
            Answer::ok(CREATE, json!({"metadata": {"annotations": status("native")}})),
            Answer::ok(JOB, job()),
            namespace(&json!({})),
        ];
        let (explanation, requests) = explained("pod/hello", answers).await;
        let explanation = explanation.unwrap();
        assert_eq!(matches!(explanation.now[..], [Verdict::Injected(_)]), is_asked, "{explanation:?}");
        assert_eq!(explanation.now.len(), verdicts, "{explanation:?}");
        assert_eq!(requests.all().iter().any(|line| line.starts_with(CREATE)), is_asked);
        let unchanged = (verdicts == 1).then(|| OptIn::Missing.describe());
        assert_eq!(explanation.pods[0].unchanged, unchanged);
    }
}

#[tokio::test]
async fn missing_object_is_an_error() {
    let (explanation, _) = explained("pod/none", []).await;
    assert_eq!(explanation.unwrap_err().to_string(), "there is no pod/none in namespace team");
}

#[test]
fn new_pod_has_no_name_and_no_node() {
    let pod = new_pod(&pods_of(&job())[0]);
    assert_eq!(pod["metadata"]["generateName"], "istio-aux-why-");
    assert_eq!(pod["metadata"]["labels"]["job-name"], "hello");
    assert!(pod["metadata"].get("name").is_none() && pod["spec"].get("nodeName").is_none());
}
