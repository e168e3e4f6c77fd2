//! Responds to the requests of each path.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use inject::review::{self, Answered, Outcome};
use inject::{Entry, Settings};
use tokio::time::timeout;

use super::connection_limit::{RequestGuard, UNCOUNTED_MEMORY_LIMIT};
use crate::metrics::Metrics;

/// Limits the size of a review, in bytes. API servers accept objects of up to 3 MiB; the rest is for the review around the
/// object, and for what JSON adds to one that was sent as protobuf.
pub(super) const BODY_LIMIT: usize = 4 << 20;
/// Limits how much of a too large body is read and discarded, in bytes, so that the client gets the response.
const BODY_DISCARD_LIMIT: usize = 4 * BODY_LIMIT;
/// Limits the time of reading a body. An API server waits 30 s for a webhook at most, and 2 s as istio-aux is installed.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Lists the paths of [`AdmissionHandler`], for a client that asks for another.
const EXISTING_PATHS: &str =
    "/mutate, and below it /pipelines-token, /mesh, /node, /node-mesh, /ended, /in-mesh and /out-of-mesh";
/// Media type of a review.
const JSON: &str = "application/json";
/// Media type of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the requests of a listener.
pub(super) trait Handler: Clone + Send + Sync + 'static {
    /// Responds to one request.
    fn handle(
        self,
        request: Request<Incoming>,
        guard: RequestGuard,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// Serves the paths of the webhook configuration, below `/mutate`.
#[derive(Debug, Clone)]
pub(super) struct AdmissionHandler {
    pub(super) settings: Arc<ArcSwap<Settings>>,
    pub(super) metrics: Arc<Metrics>,
}

impl Handler for AdmissionHandler {
    async fn handle(self, request: Request<Incoming>, guard: RequestGuard) -> Response<Full<Bytes>> {
        let (head, mut body) = request.into_parts();
        let entry = requested_entry(&head);
        // The body of a rejected request is read, too: a client that is still sending may not get the response (`broken pipe`).
        let limit = if entry.is_ok() { BODY_LIMIT } else { 0 };
        let read = timeout(BODY_READ_TIMEOUT, read_body(&mut body, limit, &guard)).await;
        let too_slow = || format!("the body took longer than {BODY_READ_TIMEOUT:?}\n");
        let read = read.unwrap_or_else(|_| Err((StatusCode::REQUEST_TIMEOUT, too_slow())));
        let rejection = match (entry, read) {
            (Ok(entry), Ok(body)) => {
                guard.mark_complete();
                return respond(&self.metrics, entry, guard, || review::answer(entry, &body, &self.settings.load()));
            }
            (Err(response), _) => *response,
            (_, Err((status, line))) => text(status, line),
        };
        self.metrics.refused();
        rejection
    }
}

/// Returns the entry that a request is for, or the response if it cannot be a review.
fn requested_entry(head: &Parts) -> Result<Entry, Box<Response<Full<Bytes>>>> {
    let path = head.uri.path();
    Err(Box::new(match (entry_of(path), other_media_type(&head.headers)) {
        (None, _) => not_found(path, EXISTING_PATHS),
        _ if head.method != Method::POST => method_not_allowed("POST"),
        (_, Some(other)) => {
            text(StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("the body is {other}; this path takes {JSON}\n"))
        }
        (Some(entry), None) => return Ok(entry),
    }))
}

/// Makes a response of an answer, and counts the review. A panic fails this request and no other.
fn respond(
    metrics: &Metrics,
    entry: Entry,
    guard: RequestGuard,
    answer: impl FnOnce() -> Result<Answered, review::Error>,
) -> Response<Full<Bytes>> {
    let started = Instant::now();
    let (outcome, response) = match catch_unwind(AssertUnwindSafe(answer)) {
        Ok(Ok(answered)) => {
            let mut response = Response::new(Full::new(counted(answered.body, guard)));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
            (answered.outcome, response)
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "rejected a request");
            (Outcome::Refused, text(StatusCode::BAD_REQUEST, format!("{error}\n")))
        }
        Err(_) => {
            tracing::error!("the decision failed, which is a bug of istio-aux");
            (Outcome::Failed, text(StatusCode::INTERNAL_SERVER_ERROR, "the decision failed; see the log\n"))
        }
    };
    metrics.review(entry, outcome, started.elapsed());
    response
}

/// Returns the entry that has this path: injection has `/mutate`, and the others their names below it.
fn entry_of(path: &str) -> Option<Entry> {
    let name = match path.strip_prefix("/mutate")? {
        "" => Entry::Injection.as_str(),
        below => below.strip_prefix('/').filter(|name| *name != Entry::Injection.as_str())?,
    };
    Entry::ALL.into_iter().find(|entry| entry.as_str() == name)
}

/// Reads a body of at most `limit` bytes, and discards a larger one. Memory is reserved as the buffer grows, whatever length
/// the client announced. Returns status and text of the response if the body cannot be read.
async fn read_body(body: &mut Incoming, limit: usize, guard: &RequestGuard) -> Result<Vec<u8>, (StatusCode, String)> {
    let aborted = |error: hyper::Error| (StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n"));
    let (mut buffer, mut length) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(aborted)?.into_data().unwrap_or_default();
        length += data.len();
        if length > BODY_DISCARD_LIMIT {
            break;
        }
        if length > limit {
            buffer = Vec::new();
            guard.record_memory(0);
            continue;
        }
        if length > buffer.capacity() {
            let capacity = length.next_power_of_two().clamp(UNCOUNTED_MEMORY_LIMIT, limit);
            guard.reserve(capacity).await;
            buffer.reserve_exact(capacity - buffer.len());
        }
        buffer.extend_from_slice(&data);
    }
    if length > limit {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {limit} bytes\n")));
    }
    Ok(buffer)
}

/// Counts a response's bytes as the request's memory until they are sent.
fn counted(bytes: Vec<u8>, guard: RequestGuard) -> Bytes {
    struct Counted(Vec<u8>, #[expect(dead_code, reason = "dropped with the bytes")] RequestGuard);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    guard.record_memory(bytes.capacity());
    Bytes::from_owner(Counted(bytes, guard))
}

/// Serves `/healthz`, `/readyz` and `/metrics`.
#[derive(Clone)]
pub(super) struct HealthHandler {
    readiness: Arc<Probe>,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// Returns the reason of a failure.
type Probe = dyn Fn() -> Result<(), String> + Send + Sync;

impl HealthHandler {
    /// Returns a handler whose `/readyz` succeeds unless `readiness` returns a reason.
    pub(super) fn new(
        readiness: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> Self {
        Self { readiness: Arc::new(readiness), metrics: Arc::new(metrics) }
    }
}

impl Handler for HealthHandler {
    async fn handle(self, request: Request<Incoming>, guard: RequestGuard) -> Response<Full<Bytes>> {
        guard.mark_complete();
        match (request.method(), request.uri().path()) {
            (&(Method::GET | Method::HEAD), "/healthz") => text(StatusCode::OK, "ok\n"),
            (&(Method::GET | Method::HEAD), "/readyz") => match (self.readiness)() {
                Ok(()) => text(StatusCode::OK, "ok\n"),
                Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
            },
            (&(Method::GET | Method::HEAD), "/metrics") => {
                let mut response = text(StatusCode::OK, (self.metrics)());
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
                response
            }
            (_, "/healthz" | "/readyz" | "/metrics") => method_not_allowed("GET"),
            (_, path) => not_found(path, "/healthz, /readyz and /metrics"),
        }
    }
}

/// Returns the announced media type if it is not that of a review.
fn other_media_type(headers: &HeaderMap) -> Option<String> {
    let announced = String::from_utf8_lossy(headers.get(CONTENT_TYPE)?.as_bytes()).into_owned();
    let media_type = announced.split(';').next().unwrap_or_default().trim();
    (!media_type.eq_ignore_ascii_case(JSON)).then(|| format!("{media_type:?}"))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn method_not_allowed(method: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("this path takes {method}\n"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(method));
    response
}

fn not_found(path: &str, existing: &str) -> Response<Full<Bytes>> {
    text(StatusCode::NOT_FOUND, format!("there is no {path:?} here; there is {existing}\n"))
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::super::connection_limit::ConnectionLimiter;
    use super::*;

    #[test]
    fn decision_that_panics_is_a_500_counted_as_failed() {
        let metrics = Metrics::new();
        let guard = ConnectionLimiter::new(1, 0, Counter::default()).acquire().start_request();
        let response = respond(&metrics, Entry::Injection, guard, || panic!("a bug"));
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let (text, failed) = (metrics.text(), r#"istio_aux_admission_reviews_total{result="failed",mode="off"} 1"#);
        assert!(text.lines().any(|line| line == failed), "{text}");
    }
}
