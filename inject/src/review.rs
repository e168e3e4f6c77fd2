//! The admission API, `admission.k8s.io/v1`: from the bytes of a review to the bytes of its answer.

use std::str::Utf8Error;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use json_patch::{Patch, PatchOperation};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::pod::Pod;
use crate::text::shortened;
use crate::{Decision, Entry, Mode, Settings};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
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

#[cfg(test)]
mod tests;
