//! What each path answers.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::timeout;

use super::tls::Certificate;
use crate::inject::Settings;
use crate::metrics::{Metrics, Outcome};
use crate::review;

/// Reviews larger than this are refused; the API server sends none above 3 MiB.
const BODY_LIMIT: usize = 8 << 20;
/// How long a client may take to send one. The API server waits for no answer longer than 30 s.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// What `/metrics` answers.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a listener serves.
pub(super) trait Routes: Clone + Send + Sync + 'static {
    /// Answers one request.
    fn answer(
        self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send;
}

/// `/mutate`, and `/mutate-v1-pod`, which earlier installations registered.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
}

impl Admission {
    pub(super) fn new(settings: Settings, metrics: Arc<Metrics>) -> Self {
        Self { settings: Arc::new(settings), metrics }
    }
}

impl Routes for Admission {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(match (request.method(), request.uri().path()) {
            (&Method::POST, "/mutate" | "/mutate-v1-pod") => self.mutate(request.into_body()).await,
            (_, "/mutate" | "/mutate-v1-pod") => not_allowed("POST"),
            (_, path) => not_found(path, "/mutate"),
        })
    }
}

impl Admission {
    async fn mutate(&self, body: Incoming) -> Response<Full<Bytes>> {
        let body = match timeout(BODY_WITHIN, Limited::new(body, BODY_LIMIT).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return text(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {BODY_LIMIT} bytes\n"));
            }
            Ok(Err(error)) => return text(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n")),
            Err(_) => return text(StatusCode::REQUEST_TIMEOUT, format!("the body took longer than {BODY_WITHIN:?}\n")),
        };
        let began = Instant::now();
        // A fault of ours ends this request, and nothing else.
        let answered = catch_unwind(AssertUnwindSafe(|| review::answer(&body, &self.settings)));
        let (outcome, response) = match answered {
            Ok(Ok(answered)) => {
                let mut response = Response::new(Full::from(answered.body));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if !self.ready.load(Ordering::Relaxed) {
            text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
        } else if u64::try_from(self.certificate.expires()).is_ok_and(|expires| expires > now) {
            text(StatusCode::OK, "ok\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "the certificate has expired\n")
        }
    }
}

impl Routes for Health {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
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
