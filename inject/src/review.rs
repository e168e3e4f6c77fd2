//! The admission API, `admission.k8s.io/v1`: from the bytes of a review to the bytes of its answer.

use std::str::Utf8Error;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use json_patch::{Patch, PatchOperation};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::pod::Pod;
use crate::{Decision, Entry, Mode, Settings};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// The characters of a client's text in a line of the log or of a response: the longest valid name has as many.
const TEXT_LIMIT: usize = 253;
/// Is enough for the patch of most pods, in bytes. Buffers that grow are copied.
const PATCH_CAPACITY: usize = 3 << 10;
/// Is enough for what is around the patch in most responses, in bytes.
const RESPONSE_CAPACITY: usize = 512;

/// The bytes are not an admission review that can be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not text at all.
    #[error("the body is not an AdmissionReview in JSON: {0}")]
    NotText(#[from] Utf8Error),
    /// Not JSON, or not of the shape of a review.
    #[error("the body is not an AdmissionReview in JSON: {}", shortened(&.0.to_string()))]
    NotAReview(#[from] serde_json::Error),
    /// Another kind or version.
    #[error("the body is {:?} of {:?}; this server answers {KIND} of {API_VERSION}", shortened(.kind), shortened(.api_version))]
    OtherKind {
        /// The kind of the body.
        kind: String,
        /// The version of the body.
        api_version: String,
    },
    /// A review without a request.
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionReview<O> {
    api_version: String,
    kind: String,
    request: Option<AdmissionRequest<O>>,
}

#[derive(Deserialize)]
struct AdmissionRequest<O> {
    uid: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    operation: String,
    #[serde(default, rename = "subResource")]
    sub_resource: String,
    kind: Kind,
    object: Option<O>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    group: String,
    kind: String,
}

/// The outcome of a review. Its mode is [`Mode::Off`] for every entry but [`Entry::Injection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The pod is changed so that it has this mode.
    Patched(Mode),
    /// The annotation that all awaited containers have ended is removed, because one of them runs again.
    Withdrawn,
    /// The pod is admitted unchanged.
    Unchanged(Mode),
    /// The pod is denied, with a message.
    Denied,
    /// The pod cannot be parsed, and is admitted unchanged.
    Unreadable,
    /// Not a valid `AdmissionReview`.
    Refused,
    /// Deciding failed, which is a fault of this program.
    Failed,
}

/// An answer.
#[derive(Debug)]
pub struct Answered {
    /// The review with its response, in JSON.
    pub body: Vec<u8>,
    /// The outcome.
    pub outcome: Outcome,
}

/// Answers a review, and logs the decision in one line. A pod that cannot be parsed is admitted unchanged, with a warning.
pub fn answer(entry: Entry, body: &[u8], settings: &Settings) -> Result<Answered, Error> {
    let began = Instant::now();
    let (request, pod) = read(entry, body)?;
    let unchanged = |warnings: &[String]| {
        respond(AdmissionResponse { uid: &request.uid, allowed: true, warnings, ..Default::default() })
    };
    let (body, outcome) = match &pod {
        Ok(Some(pod)) => {
            let decision = entry.decide(pod, settings);
            log_decision(entry, &request, pod, &decision, began);
            let outcome = match &decision.patch.0[..] {
                _ if decision.denial.is_some() => Outcome::Denied,
                [] => Outcome::Unchanged(decision.mode),
                [PatchOperation::Remove(_)] if entry == Entry::Ended => Outcome::Withdrawn,
                _ => Outcome::Patched(decision.mode),
            };
            (response_to(&request.uid, &decision).and_then(respond), outcome)
        }
        Ok(None) => (unchanged(&[]), Outcome::Unchanged(Mode::Off)),
        Err(error) => {
            let warning = format!("istio-aux: pod left unchanged: cannot parse it: {}", shortened(&error.to_string()));
            let (uid, namespace) = (shortened(&request.uid), shortened(&request.namespace));
            tracing::warn!(uid, namespace, "{warning}");
            (unchanged(&[warning]), Outcome::Unreadable)
        }
    };
    Ok(Answered { body: body?, outcome })
}

/// The request, and its pod; `None` where the entry does not decide about such a request.
type Read = (AdmissionRequest<()>, Result<Option<Pod>, serde_json::Error>);

fn read(entry: Entry, body: &[u8]) -> Result<Read, Error> {
    let body = str::from_utf8(body)?;
    // Nearly always it is a pod, which is then parsed in one pass.
    if let Ok(review) = serde_json::from_str::<AdmissionReview<Pod>>(body) {
        let (request, object) = review.into_request()?;
        let pod = object.filter(|_| request.is_for(entry));
        return Ok((request, Ok(pod)));
    }
    let (request, object) = serde_json::from_str::<AdmissionReview<&RawValue>>(body)?.into_request()?;
    let object = object.filter(|_| request.is_for(entry));
    let pod = object.map(|object| serde_json::from_str(object.get())).transpose();
    Ok((request, pod))
}

impl<O> AdmissionReview<O> {
    fn into_request(self) -> Result<(AdmissionRequest<()>, Option<O>), Error> {
        let Self { api_version, kind, request } = self;
        if (api_version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
            return Err(Error::OtherKind { kind, api_version });
        }
        let AdmissionRequest { uid, namespace, operation, sub_resource, kind, object } =
            request.ok_or(Error::NoRequest)?;
        Ok((AdmissionRequest { uid, namespace, operation, sub_resource, kind, object: None }, object))
    }
}

impl<O> AdmissionRequest<O> {
    fn is_for(&self, entry: Entry) -> bool {
        let is_pod = self.kind.group.is_empty() && self.kind.kind == "Pod";
        is_pod && (self.operation.as_str(), self.sub_resource.as_str()) == entry.operation()
    }
}

/// The review with its response, as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse<'a>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_annotations: Option<AuditAnnotations>,
}

#[derive(Serialize)]
struct Status<'a> {
    message: &'a str,
}

/// Is what the API server writes into its audit log.
#[derive(Serialize)]
struct AuditAnnotations {
    mode: &'static str,
    reason: &'static str,
}

/// Returns the review with its response.
fn respond(response: AdmissionResponse) -> Result<Vec<u8>, serde_json::Error> {
    let patch = response.patch.as_ref().map_or(0, |patch| patch.get().len());
    let mut body = Vec::with_capacity(patch + RESPONSE_CAPACITY);
    serde_json::to_writer(&mut body, &ReviewResponse { api_version: API_VERSION, kind: KIND, response })?;
    Ok(body)
}

/// Returns the response to a decision, which denies the pod where there is a message for that.
fn response_to<'a>(uid: &'a str, decision: &'a Decision) -> Result<AdmissionResponse<'a>, serde_json::Error> {
    let Decision { patch, mode, reason, warnings, denial } = decision;
    let mut response = AdmissionResponse { uid, allowed: denial.is_none(), warnings, ..AdmissionResponse::default() };
    response.status = denial.as_deref().map(|message| Status { message });
    if !patch.is_empty() {
        response.patch_type = Some("JSONPatch");
        response.patch = Some(encode(patch)?);
    }
    // The API server keeps the first value of an audit annotation, and logs a warning for another when it calls again.
    if !(patch.is_empty() && mode.has_shim()) {
        response.audit_annotations = Some(AuditAnnotations { mode: mode.as_str(), reason });
    }
    Ok(response)
}

/// Returns a patch in Base64, as a string of JSON. Base64 has nothing that JSON escapes, so it is not searched for that.
fn encode(patch: &Patch) -> Result<Box<RawValue>, serde_json::Error> {
    let mut json = Vec::with_capacity(PATCH_CAPACITY);
    serde_json::to_writer(&mut json, patch)?;
    let mut text = String::with_capacity(json.len().div_ceil(3) * 4 + 2);
    text.push('"');
    BASE64_STANDARD.encode_string(&json, &mut text);
    text.push('"');
    RawValue::from_string(text)
}

fn log_decision(entry: Entry, request: &AdmissionRequest<()>, pod: &Pod, decision: &Decision, began: Instant) {
    tracing::info!(
        entry = entry.as_str(),
        uid = shortened(&request.uid),
        namespace = shortened(&request.namespace),
        name = shortened(pod.display_name()),
        owner = shortened(&pod.owner().unwrap_or_default()),
        mode = decision.mode.as_str(),
        operations = decision.patch.len(),
        reason = decision.reason,
        warnings = decision.warnings.len(),
        took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
        "decided"
    );
}

/// Returns the beginning of a client's text, which nobody has validated.
fn shortened(text: &str) -> &str {
    text.char_indices().nth(TEXT_LIMIT).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn name_in_the_log_is_as_long_as_a_valid_one() {
        assert_eq!(shortened("train-0"), "train-0");
        assert_eq!(shortened(&"ä".repeat(1_000)).chars().count(), TEXT_LIMIT);
    }

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
            assert_eq!(
                answer(Entry::Injection, body.as_bytes(), &settings()).unwrap_err().to_string(),
                message,
                "{body}"
            );
        }
    }
}
