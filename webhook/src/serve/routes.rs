//! What each path answers.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use inject::Settings;
use inject::review::{self, Outcome};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::crowd::Open;
use super::tls::Certificate;
use crate::metrics::Metrics;

/// Reviews larger than this are refused; the API server sends none above 3 MiB.
const BODY_LIMIT: usize = 8 << 20;
/// How much of a body is read that is larger.
const THROWN_AWAY_AT_MOST: usize = 4 * BODY_LIMIT;
/// How long a client may take to send one. The API server waits for no answer longer than 30 s.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// How much of all bodies is read at once, in KiB; who comes then waits.
const BODIES_AT_ONCE: usize = 64 << 10;
/// The media type of a review.
const JSON: &str = "application/json";
/// What `/metrics` answers.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a listener serves.
pub(super) trait Routes: Clone + Send + Sync + 'static {
    /// Answers one request, which is open until then.
    fn answer(
        self,
        request: Request<Incoming>,
        open: Open,
    ) -> impl Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send;
}

/// `/mutate`, and `/mutate-v1-pod`, which earlier installations registered.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    bodies: Arc<Semaphore>,
}

impl Admission {
    pub(super) fn new(settings: Settings, metrics: Arc<Metrics>) -> Self {
        Self { settings: Arc::new(settings), metrics, bodies: Arc::new(Semaphore::new(BODIES_AT_ONCE)) }
    }
}

impl Routes for Admission {
    async fn answer(self, request: Request<Incoming>, mut open: Open) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(match (request.method(), request.uri().path()) {
            (&Method::POST, "/mutate" | "/mutate-v1-pod") => self.mutate(request, &mut open).await,
            (_, "/mutate" | "/mutate-v1-pod") => not_allowed("POST"),
            (_, path) => not_found(path, "/mutate"),
        })
    }
}

impl Admission {
    async fn mutate(&self, request: Request<Incoming>, open: &mut Open) -> Response<Full<Bytes>> {
        // Given back once the answer is there.
        let (body, _permit) = match self.body_of(request).await {
            Ok(body) => body,
            Err(refusal) => {
                self.metrics.refused();
                return refusal;
            }
        };
        open.is_whole();
        self.answer_review(&body)
    }

    /// Reads a request's body, within its limits of kind, size and time.
    async fn body_of(
        &self,
        request: Request<Incoming>,
    ) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Response<Full<Bytes>>> {
        if let Some(other) = other_media_type(request.headers()) {
            let line = format!("the body is {other}; this path takes {JSON}\n");
            return Err(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, line));
        }
        let mut body = request.into_body();
        let reading = timeout(BODY_WITHIN, self.read(&mut body));
        reading.await.unwrap_or(Err(Unread::Late)).map_err(|unread| match unread {
            Unread::TooLarge => {
                text(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {BODY_LIMIT} bytes\n"))
            }
            Unread::Late => text(StatusCode::REQUEST_TIMEOUT, format!("the body took longer than {BODY_WITHIN:?}\n")),
            Unread::Broken(error) => text(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n")),
        })
    }

    /// Reads a body, as much of all as there may be at once: what has come of it counts, not what it says it will be. One that is
    /// too large is read on, and thrown away, so that the client gets to the answer: a connection that is closed while it sends
    /// shows it an error instead.
    async fn read(&self, body: &mut Incoming) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Unread> {
        let (mut text, mut length) = (Vec::new(), 0);
        let mut share: Option<SemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Unread::Broken(error.to_string()))?;
            let data = frame.into_data().unwrap_or_default();
            length += data.len();
            if length > THROWN_AWAY_AT_MOST {
                break;
            }
            if length > BODY_LIMIT {
                text = Vec::new();
                share = None;
                continue;
            }
            let needed = length.div_ceil(1024) - share.as_ref().map_or(0, SemaphorePermit::num_permits);
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            // Nobody closes the semaphore.
            let more = self.bodies.acquire_many(needed).await.map_err(|error| Unread::Broken(error.to_string()))?;
            match &mut share {
                Some(share) => share.merge(more),
                None => share = Some(more),
            }
            text.extend_from_slice(&data);
        }
        if length > BODY_LIMIT { Err(Unread::TooLarge) } else { Ok((text, share)) }
    }

    fn answer_review(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let began = Instant::now();
        // A fault of ours ends this request, and nothing else.
        let answered = catch_unwind(AssertUnwindSafe(|| review::answer(body, &self.settings)));
        let (outcome, response) = match answered {
            Ok(Ok(answered)) => {
                let mut response = Response::new(Full::from(answered.body));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
                (answered.outcome, response)
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "refused a request");
                (Outcome::Refused, text(StatusCode::BAD_REQUEST, format!("{error}\n")))
            }
            Err(_) => {
                tracing::error!("deciding failed, which is a fault of istio-aux");
                (Outcome::Failed, text(StatusCode::INTERNAL_SERVER_ERROR, "deciding failed; the log says more\n"))
            }
        };
        self.metrics.review(outcome, began.elapsed());
        response
    }
}

/// Why a body was not read.
enum Unread {
    TooLarge,
    Late,
    Broken(String),
}

/// `/healthz`, `/readyz` and `/metrics`.
#[derive(Debug, Clone)]
pub(super) struct Health {
    ready: Arc<AtomicBool>,
    certificate: Arc<Certificate>,
    metrics: Arc<Metrics>,
}

impl Health {
    /// Ready for as long as the flag says so, and the certificate is valid.
    pub(super) fn new(ready: Arc<AtomicBool>, certificate: Arc<Certificate>, metrics: Arc<Metrics>) -> Self {
        Self { ready, certificate, metrics }
    }

    fn readiness(&self) -> Response<Full<Bytes>> {
        if !self.ready.load(Ordering::Relaxed) {
            text(StatusCode::SERVICE_UNAVAILABLE, "starting, or stopping\n")
        } else if let Some(trouble) = self.certificate.trouble() {
            text(StatusCode::SERVICE_UNAVAILABLE, format!("{trouble}\n"))
        } else {
            text(StatusCode::OK, "ok\n")
        }
    }
}

impl Routes for Health {
    async fn answer(self, request: Request<Incoming>, mut open: Open) -> Result<Response<Full<Bytes>>, Infallible> {
        open.is_whole();
        Ok(match (request.method(), request.uri().path()) {
            (&(Method::GET | Method::HEAD), "/healthz") => text(StatusCode::OK, "ok\n"),
            (&(Method::GET | Method::HEAD), "/readyz") => self.readiness(),
            (&(Method::GET | Method::HEAD), "/metrics") => {
                let mut response = text(StatusCode::OK, self.metrics.text());
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
                response
            }
            (_, "/healthz" | "/readyz" | "/metrics") => not_allowed("GET"),
            (_, path) => not_found(path, "/healthz, /readyz and /metrics"),
        })
    }
}

/// The media type that a client says, where it says another than that of a review.
fn other_media_type(headers: &HeaderMap) -> Option<String> {
    let said = String::from_utf8_lossy(headers.get(CONTENT_TYPE)?.as_bytes()).into_owned();
    let kind = said.split(';').next().unwrap_or_default().trim();
    (!kind.eq_ignore_ascii_case(JSON)).then(|| format!("{kind:?}"))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn not_allowed(method: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("this path takes {method}\n"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(method));
    response
}

fn not_found(path: &str, there_is: &str) -> Response<Full<Bytes>> {
    text(StatusCode::NOT_FOUND, format!("there is no {path:?} here; there is {there_is}\n"))
}
