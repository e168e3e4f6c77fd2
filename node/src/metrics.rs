//! Serves the agent's metrics over plain HTTP. The gauges are read at each scrape.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
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
use crate::ended_counters::EndedCounters;
use crate::status;

const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CONNECTION_LIMIT: usize = 16;
/// Limits the time of one connection, which has one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Limits the time for its request: a silent client is not to keep others out.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Limits the reading of the gauges. Prometheus waits for 10 s by default.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BUFFER_LIMIT: usize = 16 << 10;
/// Pause after the port could not be listened on, or a connection could not be accepted.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Counts what happened to proxies, by the events' labels.
#[derive(Debug, Clone)]
pub struct EventCounts(Family<EventLabels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

impl EventCounts {
    /// Creates a series for each label, so that a first failure is an increase.
    #[must_use]
    pub fn new(labels: &[&'static str]) -> Self {
        let family = Family::default();
        for event in labels {
            drop(family.get_or_create(&EventLabels { event }));
        }
        Self(family)
    }

    /// Counts one event.
    pub fn count(&self, event: &'static str) {
        self.0.get_or_create(&EventLabels { event }).inc();
    }
}

/// Renders all metrics. Gauges that could not be read are left out.
fn text(events: &EventCounts, ended: &EndedCounters, gauges: Option<Gauges>) -> String {
    let mut registry = Registry::with_prefix("istio_aux_node");
    registry.register("proxy_events", "What happened to proxies", events.0.clone());
    ended.register(&mut registry);
    if let Some(gauges) = gauges {
        register(&mut registry, gauges);
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Holds what is read from the node at a scrape.
#[derive(Debug, Clone, Copy)]
pub struct Gauges {
    /// Sandboxes that have a proxy.
    pub proxies: u64,
    /// Proxies that serve and are of another image than new ones are.
    pub outdated: u64,
    /// Pods of the runtime class that run without a proxy.
    pub pods_without_proxy: u64,
    /// When the first of the certificates is to be renewed, in seconds since 1970; `None` without certificates.
    pub earliest_renewal: Option<u64>,
}

/// Serves the counts, and the gauges that are read at each scrape.
#[derive(Clone)]
pub struct Exporter {
    /// What the agent has counted.
    pub events: EventCounts,
    /// What proxies had counted when they ended.
    pub ended: Arc<EndedCounters>,
    /// containerd.
    pub containerd: Containerd,
    /// The directory of the proxies' files.
    pub run_dir: PathBuf,
    /// The image of new proxies.
    pub image: String,
}

impl Exporter {
    /// Serves `/metrics` on a port, if any, for as long as it is polled.
    pub async fn serve(self, port: Option<u16>) -> Infallible {
        let Some(port) = port else { return pending().await };
        let listener = loop {
            match bind(port).await {
                Ok(listener) => break listener,
                Err(error) => tracing::warn!(%error, port, "metrics are not served"),
            }
            sleep(RETRY_DELAY).await;
        };
        self.serve_on(&listener).await
    }

    async fn serve_on(self, listener: &TcpListener) -> Infallible {
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
                http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
                http.max_buf_size(READ_BUFFER_LIMIT).keep_alive(false);
                let service = service_fn(|request| exporter.respond(request));
                // An error of a connection concerns its client only.
                let _ = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(stream), service)).await;
                drop(permit);
            });
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        let mut response = Response::new(String::new());
        if request.uri().path() == "/metrics" {
            let read = status::gauges(&self.containerd, &self.run_dir, &self.image);
            let read = timeout(READ_TIMEOUT, read).await.map_err(|_| format!("no answer in {READ_TIMEOUT:?}"));
            let gauges = read.and_then(|read| read.map_err(|error| error.to_string()));
            let gauges = gauges.inspect_err(|error| tracing::warn!(error, "metrics lack what containerd says")).ok();
            *response.body_mut() = text(&self.events, &self.ended, gauges);
            response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(CONTENT));
        } else {
            *response.status_mut() = StatusCode::NOT_FOUND;
            "metrics are at /metrics\n".clone_into(response.body_mut());
        }
        Ok(response)
    }
}

fn register(registry: &mut Registry, gauges: Gauges) {
    let mut register = |name, help, value: u64| {
        let gauge: Gauge<u64, AtomicU64> = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    register("proxies", "Pods on this node that have a proxy", gauges.proxies);
    register("outdated_proxies", "Proxies of another image than new ones are", gauges.outdated);
    register("pods_without_proxy", "Pods of the runtime class that run outside of the mesh", gauges.pods_without_proxy);
    if let Some(due) = gauges.earliest_renewal {
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
    use std::path::Path;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const LABELS: [&str; 2] = ["started", "exited"];

    fn samples(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter_map(|line| line.strip_prefix("istio_aux_node_"))
    }

    #[test]
    fn metrics_have_readable_gauges() {
        let gauges = Gauges { proxies: 3, outdated: 1, pods_without_proxy: 0, earliest_renewal: Some(1_050) };
        let mut all = vec!["proxies 3", "outdated_proxies 1", "pods_without_proxy 0"];
        let without_renewal = (Some(Gauges { earliest_renewal: None, ..gauges }), all.clone());
        all.push("certificate_renewal_due_timestamp_seconds 1050");
        for (gauges, expected) in [(None, vec![]), without_renewal, (Some(gauges), all)] {
            let events = EventCounts::new(&LABELS);
            events.count("exited");
            let text = text(&events, &EndedCounters::default(), gauges);
            for event in [r#"proxy_events_total{event="exited"} 1"#, r#"proxy_events_total{event="started"} 0"#] {
                assert!(text.contains(event), "{text}");
            }
            let found = samples(&text).filter(|sample| !sample.starts_with("proxy_events_total")).collect::<Vec<_>>();
            assert_eq!(found, expected);
        }
    }

    #[tokio::test]
    async fn only_metrics_path_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let containerd = Containerd::at(Path::new("/no/such/socket")).unwrap();
        let (events, ended) = (EventCounts::new(&LABELS), Arc::default());
        let exporter = Exporter { events, ended, containerd, run_dir: PathBuf::new(), image: String::new() };
        tokio::spawn(async move { exporter.serve_on(&listener).await });
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            response
        };
        let response = ask("/metrics").await;
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && head.contains(&format!("content-type: {CONTENT}")), "{head}");
        assert_eq!(samples(body).count(), LABELS.len(), "{body}");
        assert!(ask("/").await.starts_with("HTTP/1.1 404"));
    }
}
