//! What each path answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::inject::Settings;
use crate::review;

/// Reviews larger than this are refused; the API server sends none above 3 MiB.
const BODY_LIMIT: usize = 8 << 20;

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
}

impl Admission {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings) }
    }
}

impl Routes for Admission {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(match (request.method(), request.uri().path()) {
            (&Method::POST, "/mutate" | "/mutate-v1-pod") => mutate(request.into_body(), &self.settings).await,
            (_, "/mutate" | "/mutate-v1-pod") => not_allowed("POST"),
            (_, path) => not_found(path, "/mutate"),
        })
    }
}

async fn mutate(body: Incoming, settings: &Settings) -> Response<Full<Bytes>> {
    let body = match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return text(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {BODY_LIMIT} bytes\n"));
        }
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n")),
    };
    match review::answer(&body, settings) {
        Ok(answer) => {
            let mut response = Response::new(Full::from(answer));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => {
            tracing::warn!(%error, "refused a request");
            text(StatusCode::BAD_REQUEST, format!("{error}\n"))
        }
    }
}

/// `/healthz` and `/readyz`.
#[derive(Debug, Clone)]
pub(super) struct Health {
    ready: Arc<AtomicBool>,
}

impl Health {
    /// Ready for as long as the flag says so.
    pub(super) fn new(ready: Arc<AtomicBool>) -> Self {
        Self { ready }
    }
}

impl Routes for Health {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(match (request.method(), request.uri().path()) {
            (&(Method::GET | Method::HEAD), "/healthz") => text(StatusCode::OK, "ok\n"),
            (&(Method::GET | Method::HEAD), "/readyz") if self.ready.load(Ordering::Relaxed) => {
                text(StatusCode::OK, "ok\n")
            }
            (&(Method::GET | Method::HEAD), "/readyz") => text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
            (_, "/healthz" | "/readyz") => not_allowed("GET"),
            (_, path) => not_found(path, "/healthz and /readyz"),
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
