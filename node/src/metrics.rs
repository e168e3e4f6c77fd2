//! The agent's metrics, over plain HTTP. What proxies there are is read from the node when somebody asks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::containerd::Containerd;
use crate::status::{self, Proxy};

const CONNECTION_LIMIT: usize = 16;
/// How long one connection, which has one request, may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
const READ_BUFFER_LIMIT: usize = 16 << 10;
/// Pause after a connection could not be accepted, for example because no file descriptor was left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often something happened to a proxy.
pub type Events = Family<EventLabels, Counter>;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EventLabels {
    /// Such as `started`.
    pub event: &'static str,
}

/// Nothing has happened yet: each series is there, so that a first failure is an increase.
#[must_use]
pub fn events() -> Events {
    let events = Events::default();
    for event in ["started", "start_failed", "exited", "removed", "remove_failed"] {
        drop(events.get_or_create(&EventLabels { event }));
    }
    events
}

/// What the metrics are made from.
#[derive(Clone)]
pub struct Exporter {
    /// containerd.
    pub containerd: Containerd,
    /// The agent's directory below `/run`.
    pub run_dir: PathBuf,
    /// What the agent has counted.
    pub events: Events,
}

impl Exporter {
    /// Serves `/metrics` for as long as it is polled.
    pub async fn serve(self, address: SocketAddr) -> Result<(), String> {
        let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
        let permits = Arc::new(Semaphore::new(CONNECTION_LIMIT));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return Ok(()) };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection for metrics");
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let exporter = self.clone();
            tokio::spawn(async move {
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).max_buf_size(READ_BUFFER_LIMIT).keep_alive(false);
                let service = service_fn(|request| exporter.respond(request));
                // What goes wrong with a connection is the client's own trouble.
                let _ = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(stream), service)).await;
                drop(permit);
            });
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        let (status, body) = if request.uri().path() == "/metrics" {
            match status::proxies(&self.containerd, &self.run_dir).await {
                Ok(proxies) => (StatusCode::OK, text(&self.events, &proxies, SystemTime::now())),
                Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
            }
        } else {
            (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned())
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        Ok(response)
    }
}

/// All metrics as text.
fn text(events: &Events, proxies: &[Proxy], now: SystemTime) -> String {
    let mut registry = Registry::with_prefix("istio_aux_node");
    let count: Gauge = Gauge::default();
    count.set(i64::try_from(proxies.len()).unwrap_or(i64::MAX));
    registry.register("proxies", "Proxies beside pods on this node", count);
    let first_end = proxies.iter().filter_map(|proxy| proxy.certificate_expires_in).min();
    if let Some(expiry) = first_end.and_then(|left| (now + left).duration_since(UNIX_EPOCH).ok()) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(expiry.as_secs_f64().round());
        let help = "When the first of the proxies' certificates expires, in seconds since 1970";
        registry.register("certificate_expiry_timestamp_seconds", help, gauge);
    }
    registry.register("proxy_events", "What happened to proxies", events.clone());
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = text::encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::status::tests::a_proxy;

    #[test]
    fn proxies_events_and_the_first_certificates_end_are_said() {
        let events = Events::default();
        events.get_or_create(&EventLabels { event: "started" }).inc();
        let left = |seconds| Some(Duration::from_secs(seconds));
        let proxies = [a_proxy("x", true, left(100)), a_proxy("y", true, left(50)), a_proxy("z", false, None)];
        let text = text(&events, &proxies, UNIX_EPOCH + Duration::from_secs(1_000));
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "istio_aux_node_proxies 3",
            "istio_aux_node_certificate_expiry_timestamp_seconds 1050.0",
            "istio_aux_node_proxy_events_total{event=\"started\"} 1",
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn without_proxies_no_certificate_expires() {
        assert!(!text(&Events::default(), &[], UNIX_EPOCH).contains("expiry"));
    }

    #[tokio::test]
    async fn without_containerd_the_response_says_so_and_other_paths_are_not_found() {
        let directory = tempfile::tempdir().unwrap();
        let address = {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        };
        let containerd = Containerd::at(&directory.path().join("containerd.sock")).unwrap();
        let exporter = Exporter { containerd, run_dir: directory.path().into(), events: Events::default() };
        let served = tokio::spawn(exporter.serve(address));
        for (path, status) in [("/metrics", "503"), ("/", "404")] {
            let mut stream = loop {
                if let Ok(stream) = TcpStream::connect(address).await {
                    break stream;
                }
                assert!(!served.is_finished(), "the listener ended");
                tokio::task::yield_now().await;
            };
            let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            assert_eq!(response.split(' ').nth(1), Some(status), "{response}");
        }
    }
}
