//! What each path responds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use inject::review::{self, Entry, Outcome};
use inject::{Delivery, Settings};
use tokio::time::timeout;

use super::connection_limit::{RequestGuard, UNCOUNTED_MEMORY_LIMIT};
use crate::metrics::Metrics;

/// The largest review, in bytes. An API server takes objects of 3 MiB at most, and a review of a creation carries one. The
/// rest is for the review around it, and for what JSON adds to an object that came as protobuf.
pub(super) const BODY_LIMIT: usize = 4 << 20;
/// How much of a body that is too large is read and discarded, in bytes, so that the client gets the response.
const BODY_DISCARD_LIMIT: usize = 4 * BODY_LIMIT;
/// How long a body may take. An API server waits no longer than 30 s for a webhook, and 5 s as istio-aux is installed.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The path for namespaces that have the shim's `ConfigMap`, before the version whose it is.
const CONFIG_MAP_PATH: &str = "/mutate/config-map/";
/// The paths of [`AdmissionHandler`], for a client that asks for another.
const EXISTING_PATHS: &str =
    "/mutate, /mutate/config-map/VERSION, /mutate/pipelines-token, /mutate/mesh and /mutate/node";
/// The media type of a review.
const JSON: &str = "application/json";
/// The media type of metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a listener serves.
pub(super) trait Handler: Clone + Send + Sync + 'static {
    /// Responds to one request.
    fn handle(
        self,
        request: Request<Incoming>,
        guard: RequestGuard,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// The paths of the webhook configuration, below `/mutate`.
#[derive(Debug, Clone)]
pub(super) struct AdmissionHandler {
    settings: Arc<Settings>,
    /// The same with delivery by `ConfigMap`, where that is on.
    config_map_settings: Option<Arc<Settings>>,
    metrics: Arc<Metrics>,
}

impl AdmissionHandler {
    /// `config_map` is the name of the `ConfigMap` of this version's shim, where that delivery is on.
    pub(super) fn new(settings: Settings, config_map: Option<String>, metrics: Arc<Metrics>) -> Self {
        let config_map_settings =
            config_map.map(|name| Arc::new(Settings { delivery: Delivery::ConfigMap(name), ..settings.clone() }));
        Self { settings: Arc::new(settings), config_map_settings, metrics }
    }

    fn settings(&self, delivery: PathDelivery) -> &Settings {
        match &self.config_map_settings {
            Some(settings) if delivery == PathDelivery::ConfigMap => settings,
            _ => &self.settings,
        }
    }

    async fn mutate(&self, route: Route, request: Request<Incoming>, guard: RequestGuard) -> Response<Full<Bytes>> {
        if let Some(other) = other_media_type(request.headers()) {
            self.metrics.refused();
            let line = format!("the body is {other}; this path takes {JSON}\n");
            return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, line);
        }
        let mut body = request.into_body();
        let read = timeout(BODY_READ_TIMEOUT, read_body(&mut body, &guard)).await;
        match read.unwrap_or(Err(ReadBodyError::Timeout)) {
            Ok(body) => {
                guard.mark_complete();
                self.respond(route, &body, guard)
            }
            Err(error) => {
                self.metrics.refused();
                error.into_response()
            }
        }
    }

    fn respond(&self, Route { entry, delivery }: Route, body: &[u8], guard: RequestGuard) -> Response<Full<Bytes>> {
        let started = Instant::now();
        // A bug fails this request and no other.
        let answered = catch_unwind(AssertUnwindSafe(|| review::answer(entry, body, self.settings(delivery))));
        let (outcome, response) = match answered {
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
        self.metrics.review(entry, outcome, started.elapsed());
        response
    }
}

impl Handler for AdmissionHandler {
    async fn handle(self, request: Request<Incoming>, guard: RequestGuard) -> Response<Full<Bytes>> {
        match (request.method(), route(request.uri().path())) {
            (&Method::POST, Some(route)) => self.mutate(route, request, guard).await,
            (_, Some(_)) => method_not_allowed("POST"),
            (_, None) => not_found(request.uri().path(), EXISTING_PATHS),
        }
    }
}

/// What a path asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    entry: Entry,
    delivery: PathDelivery,
}

/// What a path says of the pod's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathDelivery {
    /// Nothing: the installation's delivery.
    Installation,
    /// The `ConfigMap` of this version's shim is there.
    ConfigMap,
}

/// The route of a path. Earlier installations registered `/mutate-v1-pod`.
fn route(path: &str) -> Option<Route> {
    let route = |entry| Some(Route { entry, delivery: PathDelivery::Installation });
    match path {
        "/mutate" | "/mutate-v1-pod" => route(Entry::Injection),
        "/mutate/pipelines-token" => route(Entry::PipelinesToken),
        "/mutate/mesh" => route(Entry::Mesh),
        "/mutate/node" => route(Entry::Node),
        // While istio-aux is updated, the configuration and this replica may be of different versions. Another version's
        // ConfigMap is of no use to this one, so such pods get the installation's delivery.
        _ => path.strip_prefix(CONFIG_MAP_PATH).filter(|version| is_version(version)).map(|version| Route {
            entry: Entry::Injection,
            delivery: if version == env!("CARGO_PKG_VERSION") {
                PathDelivery::ConfigMap
            } else {
                PathDelivery::Installation
            },
        }),
    }
}

fn is_version(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte))
}

/// Why a body was not read.
#[derive(Debug)]
enum ReadBodyError {
    TooLarge,
    Timeout,
    Aborted(hyper::Error),
}

impl ReadBodyError {
    fn into_response(self) -> Response<Full<Bytes>> {
        match self {
            Self::TooLarge => {
                text(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {BODY_LIMIT} bytes\n"))
            }
            Self::Timeout => {
                text(StatusCode::REQUEST_TIMEOUT, format!("the body took longer than {BODY_READ_TIMEOUT:?}\n"))
            }
            Self::Aborted(error) => text(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n")),
        }
    }
}

/// Reads a body. It reserves the memory of its buffer as that grows, not the length that the client announced.
async fn read_body(body: &mut Incoming, guard: &RequestGuard) -> Result<Vec<u8>, ReadBodyError> {
    let (mut buffer, mut length) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(ReadBodyError::Aborted)?.into_data().unwrap_or_default();
        length += data.len();
        if length > BODY_DISCARD_LIMIT {
            break;
        }
        if length > BODY_LIMIT {
            buffer = Vec::new();
            guard.record_memory(0);
            continue;
        }
        if length > buffer.capacity() {
            let capacity = length.next_power_of_two().clamp(UNCOUNTED_MEMORY_LIMIT, BODY_LIMIT);
            guard.reserve(capacity).await;
            buffer.reserve_exact(capacity - buffer.len());
        }
        buffer.extend_from_slice(&data);
    }
    if length > BODY_LIMIT { Err(ReadBodyError::TooLarge) } else { Ok(buffer) }
}

/// A response's bytes, which count as the request's memory until they are sent.
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

/// `/healthz`, `/readyz` and `/metrics`.
#[derive(Clone)]
pub(super) struct HealthHandler {
    readiness: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

impl HealthHandler {
    /// It is ready unless `readiness` returns a reason.
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

/// The media type that the client announced, if it is not that of a review.
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
    use super::*;

    #[test]
    fn only_the_path_of_this_version_is_answered_with_a_config_map() {
        let own = concat!("/mutate/config-map/", env!("CARGO_PKG_VERSION"));
        let handler = |config_map: Option<&str>| {
            let config_map = config_map.map(str::to_owned);
            AdmissionHandler::new(Settings::new("shim:1"), config_map, Arc::new(Metrics::new()))
        };
        let known = handler(Some("istio-aux-shim-0123456789"));
        let delivery = |handler: &AdmissionHandler, path: &str| {
            route(path).map(|route| (route.entry, handler.settings(route.delivery).delivery.as_str()))
        };
        let cases = [
            ("/mutate", Some((Entry::Injection, "copy"))),
            ("/mutate-v1-pod", Some((Entry::Injection, "copy"))),
            (own, Some((Entry::Injection, "config-map"))),
            ("/mutate/config-map/0.0.1", Some((Entry::Injection, "copy"))),
            ("/mutate/config-map/99.0.0-rc.1", Some((Entry::Injection, "copy"))),
            ("/mutate/config-map/", None),
            ("/mutate/config-map", None),
            ("/mutate/config-map/0.1.0/x", None),
            ("/mutate/mesh", Some((Entry::Mesh, "copy"))),
            ("/mutate/pipelines-token", Some((Entry::PipelinesToken, "copy"))),
        ];
        for (path, expected) in cases {
            assert_eq!(delivery(&known, path), expected, "{path}");
        }
        assert_eq!(delivery(&handler(None), own), Some((Entry::Injection, "copy")), "the delivery is off");
    }
}
