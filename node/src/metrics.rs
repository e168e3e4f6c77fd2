//! The agent's metrics, over plain HTTP. What proxies there are is read from the node at each scrape.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::containerd::Containerd;
use crate::proxy;

const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CONNECTION_LIMIT: usize = 16;
/// How long one connection, which has one request, may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long containerd may take. Prometheus waits for 10 s by default.
const CONTAINERD_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BUFFER_LIMIT: usize = 16 << 10;
/// Pause after the port could not be listened on, or a connection could not be accepted.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// How often something happened to a proxy.
#[derive(Debug, Clone)]
pub struct Events(Family<EventLabels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// A proxy serves.
    Started,
    /// A proxy could not be started.
    StartFailed,
    /// A proxy serves in the place of an outdated one.
    Upgraded,
    /// A proxy could not be started in the place of an outdated one.
    UpgradeFailed,
    /// A proxy has ended by itself.
    Exited,
    /// Nothing of a proxy is left.
    Removed,
    /// Something of a proxy may be left.
    RemoveFailed,
}

impl Counted {
    const ALL: [Self; 7] = [
        Self::Started,
        Self::StartFailed,
        Self::Upgraded,
        Self::UpgradeFailed,
        Self::Exited,
        Self::Removed,
        Self::RemoveFailed,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::StartFailed => "start_failed",
            Self::Upgraded => "upgraded",
            Self::UpgradeFailed => "upgrade_failed",
            Self::Exited => "exited",
            Self::Removed => "removed",
            Self::RemoveFailed => "remove_failed",
        }
    }
}

impl Default for Events {
    /// Each series is there from the start, so that a first failure is an increase.
    fn default() -> Self {
        let family = Family::default();
        for counted in Counted::ALL {
            drop(family.get_or_create(&EventLabels { event: counted.as_str() }));
        }
        Self(family)
    }
}

impl Events {
    /// Counts one.
    pub fn count(&self, counted: Counted) {
        self.0.get_or_create(&EventLabels { event: counted.as_str() }).inc();
    }
}

/// What the metrics are made from.
#[derive(Clone)]
pub struct Exporter {
    /// containerd.
    pub containerd: Containerd,
    /// The agent's directory below `/run`.
    pub run_dir: PathBuf,
    /// Names the image of new proxies.
    pub image: String,
    /// What the agent has counted.
    pub events: Events,
}

impl Exporter {
    /// Serves `/metrics` for as long as it is polled.
    pub async fn serve(self, port: u16) -> Infallible {
        let listener = loop {
            match bind(port).await {
                Ok(listener) => break listener,
                Err(error) => tracing::warn!(%error, port, "metrics are not served"),
            }
            sleep(RETRY_DELAY).await;
        };
        let permits = Arc::new(Semaphore::new(CONNECTION_LIMIT));
        loop {
            let permit = permits.clone().acquire_owned().await;
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection for metrics");
                    sleep(RETRY_DELAY).await;
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
        let mut response = Response::new(String::new());
        if request.uri().path() == "/metrics" {
            *response.body_mut() = self.text().await;
            response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(CONTENT));
        } else {
            *response.status_mut() = StatusCode::NOT_FOUND;
            "metrics are at /metrics\n".clone_into(response.body_mut());
        }
        Ok(response)
    }

    /// All metrics. While containerd does not answer, those of the proxies are left out.
    async fn text(&self) -> String {
        let mut registry = Registry::with_prefix("istio_aux_node");
        registry.register("proxy_events", "What happened to proxies", self.events.0.clone());
        if let Ok(Ok(containers)) = timeout(CONTAINERD_TIMEOUT, self.containerd.list()).await {
            // While a proxy is upgraded, its sandbox has two.
            let sandboxes: BTreeSet<_> = containers.keys().filter_map(|id| proxy::sandbox_of_proxy(id)).collect();
            let due = sandboxes.iter().filter_map(|id| proxy::certificate_renewal_due(&self.run_dir, id)).min();
            let is_outdated = |(id, labels): &(&String, &_)| {
                proxy::is_serving(&self.run_dir, id) && proxy::image_of(labels) != self.image
            };
            let outdated = containers.iter().filter(is_outdated).count();
            register_proxies(&mut registry, sandboxes.len(), outdated, due);
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

fn register_proxies(registry: &mut Registry, count: usize, outdated: usize, earliest_renewal: Option<u64>) {
    let mut register = |name, help, value: i64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    register("proxies", "Proxies beside pods on this node", i64::try_from(count).unwrap_or(i64::MAX));
    let help = "Those of them that are of another image than new ones are";
    register("outdated_proxies", help, i64::try_from(outdated).unwrap_or(i64::MAX));
    if let Some(due) = earliest_renewal.and_then(|due| i64::try_from(due).ok()) {
        let help = "When the first of the proxies' certificates is to be renewed, in seconds since 1970";
        register("certificate_renewal_due_timestamp_seconds", help, due);
    }
}

/// Listens for IPv6 and IPv4; on a host without IPv6, for IPv4.
async fn bind(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map_err(|_| error)
        }
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    fn samples(text: &str) -> Vec<&str> {
        text.lines().filter(|line| !line.starts_with('#')).collect()
    }

    #[test]
    fn the_number_of_proxies_and_the_earliest_renewal_are_gauges() {
        for (due, expected) in [
            (
                Some(1_050),
                vec!["a_proxies 3", "a_outdated_proxies 1", "a_certificate_renewal_due_timestamp_seconds 1050"],
            ),
            (None, vec!["a_proxies 3", "a_outdated_proxies 1"]),
        ] {
            let mut registry = Registry::with_prefix("a");
            register_proxies(&mut registry, 3, 1, due);
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            assert_eq!(samples(&text), expected);
        }
    }

    #[tokio::test]
    async fn counters_are_served_without_containerd_and_other_paths_are_not_found() {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let containerd = Containerd::at(&directory.path().join("containerd.sock")).unwrap();
        let events = Events::default();
        events.count(Counted::Exited);
        let exporter = Exporter { containerd, run_dir: directory.path().into(), image: String::new(), events };
        tokio::spawn(exporter.serve(port));
        let ask = async |path: &str| {
            let mut stream = loop {
                if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                    break stream;
                }
                tokio::task::yield_now().await;
            };
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            response
        };
        let response = ask("/metrics").await;
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && head.contains(&format!("content-type: {CONTENT}")), "{head}");
        let counts = samples(body).into_iter().map(|sample| sample.ends_with(" 1")).filter(|is_one| *is_one).count();
        assert_eq!((samples(body).len(), counts), (Counted::ALL.len(), 1), "{body}");
        assert!(body.contains(r#"istio_aux_node_proxy_events_total{event="exited"} 1"#), "{body}");
        assert!(ask("/").await.starts_with("HTTP/1.1 404"));
    }
}
