//! Reviews, and the bytes of their answers.

use super::*;
use serde_json::{Value, json};

fn settings() -> Settings {
    Settings::new("shim:1")
}

fn review(object: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "request": {
            "uid": "705ab4f5", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "team", "operation": "CREATE", "object": object,
        },
    })
}

fn response(entry: Entry, review: &Value) -> Value {
    let answered = answer(entry, review.to_string().as_bytes(), &settings()).unwrap();
    serde_json::from_slice::<Value>(&answered.body).unwrap()["response"].take()
}

fn patch_of(response: &Value) -> Value {
    let patch = BASE64_STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    serde_json::from_slice(&patch).unwrap()
}

fn a_pod() -> Value {
    let account_token =
        json!({"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    let main = json!({"name": "main", "volumeMounts": [account_token]});
    json!({"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [main]}})
}

#[test]
fn answer_has_uid_and_patch() {
    let response = response(Entry::Injection, &review(&a_pod()));
    assert_eq!(response["uid"], "705ab4f5");
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = patch_of(&response);
    assert_eq!(patch[0]["path"], "/metadata/annotations");
    assert_eq!(patch[1]["path"], "/metadata/annotations/proxy.istio.io~1config");
    let audit = json!({"mode": "hold", "reason": "istio-proxy is not in the pod (yet)"});
    assert_eq!(response["auditAnnotations"], audit);
}

/// Returns a review of an update of the pod's status.
fn status_review(object: &Value) -> Value {
    let mut review = review(object);
    review["request"]["operation"] = json!("UPDATE");
    review["request"]["subResource"] = json!("status");
    review
}

fn an_ended_pod() -> Value {
    let mut pod = a_pod();
    pod["spec"]["initContainers"] = json!([{"name": "aux-shim", "args": ["watch", "--await=main"]}]);
    pod["status"] = json!({"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]});
    pod
}

#[test]
fn each_entry_makes_a_patch_of_its_own() {
    let first_path = |entry: Entry| {
        let review = if entry == Entry::Ended { status_review(&an_ended_pod()) } else { review(&a_pod()) };
        patch_of(&response(entry, &review))[0]["path"].as_str().unwrap().to_owned()
    };
    let expected = [
        "/metadata/annotations",
        "/spec/containers/0/volumeMounts/-",
        "/metadata/labels",
        "/spec/runtimeClassName",
        "/spec/runtimeClassName",
        "/metadata/annotations",
        "/metadata/labels",
        "/metadata/labels",
    ];
    assert_eq!(Entry::ALL.map(first_path), expected);
}

#[test]
fn entries_that_share_a_path_differ_in_their_values() {
    let label = |entry| patch_of(&response(entry, &review(&a_pod())))[1]["value"].clone();
    assert_eq!([label(Entry::InMesh), label(Entry::OutOfMesh)], ["true", "false"]);
    let mut service = a_pod();
    service["spec"]["restartPolicy"] = json!("Always");
    let outcome = |entry| answer(entry, review(&service).to_string().as_bytes(), &settings()).unwrap().outcome;
    assert_eq!(outcome(Entry::Node), Outcome::Patched(Mode::Off));
    assert_eq!(outcome(Entry::NodeMesh), Outcome::Unchanged(Mode::Off));
}

#[test]
fn creation_of_a_pod_withdraws_no_report() {
    let mut copied = a_pod();
    copied["spec"]["restartPolicy"] = json!("Always");
    copied["metadata"]["annotations"] =
        json!({"istio-aux.io/ended": "main=0", "istio-aux.io/mode": "off", "other": "x"});
    let body = review(&copied).to_string();
    let answered = answer(Entry::Injection, body.as_bytes(), &settings()).unwrap();
    assert_eq!(answered.outcome, Outcome::Patched(Mode::Off));
    let patch = patch_of(&serde_json::from_slice::<Value>(&answered.body).unwrap()["response"]);
    assert_eq!(patch, json!([{"op": "remove", "path": "/metadata/annotations/istio-aux.io~1ended"}]));
}

#[test]
fn denied_pod_gets_the_message_and_no_patch() {
    let mut pod = a_pod();
    pod["spec"]["hostNetwork"] = json!(true);
    pod["spec"]["runtimeClassName"] = json!("istio-aux");
    let answered = answer(Entry::Node, review(&pod).to_string().as_bytes(), &settings()).unwrap();
    assert_eq!(answered.outcome, Outcome::Denied);
    let response = serde_json::from_slice::<Value>(&answered.body).unwrap()["response"].take();
    let reason = "the pod is in the node's network (hostNetwork)";
    let message = format!(
        "istio-aux: no proxy on the node for this pod: {reason}; change that, or remove runtimeClassName istio-aux"
    );
    let expected = json!({
        "uid": "705ab4f5", "allowed": false, "status": {"message": message},
        "auditAnnotations": {"mode": "off", "reason": reason},
    });
    assert_eq!(response, expected);
}

#[test]
fn other_requests_are_allowed_unchanged() {
    let mut update = review(&a_pod());
    update["request"]["operation"] = json!("UPDATE");
    let mut job = review(&a_pod());
    job["request"]["kind"] = json!({"group": "batch", "version": "v1", "kind": "Job"});
    let mut template = review(&a_pod());
    template["request"]["kind"] = json!({"group": "", "version": "v1", "kind": "PodTemplate"});
    let mut pod_of_others = review(&a_pod());
    pod_of_others["request"]["kind"] = json!({"group": "x", "version": "v1", "kind": "Pod"});
    let mut not_a_pod = review(&json!({"spec": {"template": a_pod()}}));
    not_a_pod["request"]["kind"] = job["request"]["kind"].clone();
    let mut no_object = review(&Value::Null);
    no_object["request"]["operation"] = json!("DELETE");
    for review in [update, status_review(&a_pod()), job, template, pod_of_others, not_a_pod, no_object] {
        let unchanged = json!({"uid": "705ab4f5", "allowed": true});
        assert_eq!(response(Entry::Injection, &review), unchanged, "{review}");
    }
}

#[test]
fn ends_are_reported_in_updates_of_the_status_only() {
    let mut update = status_review(&an_ended_pod());
    update["request"]["subResource"] = json!("");
    let mut started_again = an_ended_pod();
    started_again["metadata"]["annotations"] = json!({"istio-aux.io/ended": "main=0", "other": "x"});
    started_again["status"]["containerStatuses"][0]["state"] = json!({"running": {}});
    for (review, expected) in [
        (review(&an_ended_pod()), Outcome::Unchanged(Mode::Off)),
        (update, Outcome::Unchanged(Mode::Off)),
        (status_review(&an_ended_pod()), Outcome::Patched(Mode::Off)),
        (status_review(&started_again), Outcome::Withdrawn),
    ] {
        let outcome = answer(Entry::Ended, review.to_string().as_bytes(), &settings()).unwrap().outcome;
        assert_eq!(outcome, expected, "{review}");
    }
}

#[test]
fn unparsable_pod_is_allowed_with_a_warning() {
    let response = response(Entry::Injection, &review(&json!({"spec": {"containers": 3}})));
    assert_eq!(response["allowed"], true);
    assert_eq!(response.get("patch"), None);
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("istio-aux: pod left unchanged: cannot parse it: invalid type"), "{warning}");
}

#[test]
fn clients_text_is_not_repeated_at_its_length() {
    let long = "A".repeat(1 << 20);
    let response = response(Entry::Injection, &review(&json!({"spec": {"containers": long}})));
    assert!(response.to_string().len() < 1_000, "{} bytes", response.to_string().len());
    let mut not_a_review = review(&Value::Null);
    not_a_review["request"] = json!(long);
    for body in [json!({"apiVersion": long, "kind": long}), not_a_review] {
        let error = answer(Entry::Injection, body.to_string().as_bytes(), &settings()).unwrap_err().to_string();
        assert!(error.len() < 1_000, "{} bytes", error.len());
    }
}

#[test]
fn invalid_review_is_rejected_in_one_line() {
    let cases = [
        ("", "the body is not an AdmissionReview in JSON: EOF while parsing a value at line 1 column 0"),
        (
            "{\"apiVersion\":",
            "the body is not an AdmissionReview in JSON: EOF while parsing a value at line 1 column 14",
        ),
        (
            "[]",
            "the body is not an AdmissionReview in JSON: invalid length 0, expected struct AdmissionReview with 3 elements at line 1 column 2",
        ),
        (
            "{\"apiVersion\": \"admission.k8s.io/v1beta1\", \"kind\": \"AdmissionReview\"}",
            "the body is \"AdmissionReview\" of \"admission.k8s.io/v1beta1\"; this server answers AdmissionReview of admission.k8s.io/v1",
        ),
        (
            "{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}",
            "the body is \"Pod\" of \"v1\"; this server answers AdmissionReview of admission.k8s.io/v1",
        ),
        (
            "{\"apiVersion\": \"admission.k8s.io/v1\", \"kind\": \"AdmissionReview\"}",
            "the AdmissionReview has no request",
        ),
    ];
    for (body, message) in cases {
        assert_eq!(answer(Entry::Injection, body.as_bytes(), &settings()).unwrap_err().to_string(), message, "{body}");
    }
}
