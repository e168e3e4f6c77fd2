//! Prometheus' scrapes of pods that take mutual TLS only and have their proxy beside them, and of their node's agent.

use std::net::{IpAddr, SocketAddr};

use e2e::cluster::{NODE_PROXY, until_istiod_has};
use e2e::command::{printed, run};
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::{deployment, pod_spec, shell, strict, with_annotations, with_memory};
use e2e::namespace::WAIT_TIMEOUT;
use e2e::node::{self, WithMetrics, ended};
use e2e::{Namespace, scenario};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Returns a server of one metric.
fn application(name: &str, annotations: &Value) -> Value {
    let serve = "echo jobs_done_total 42 >/memory/metrics; exec httpd -f -p 8080 -h /memory";
    with_annotations(deployment(name, &with_memory(pod_spec("Always", &[shell("main", serve)]))), annotations)
}

/// Returns the annotations by which Prometheus finds the server's metric.
fn scrape() -> Value {
    json!({"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics"})
}

/// Returns what Prometheus gets outside of the mesh, where a pod's annotations say.
async fn scraped(ns: &Namespace, name: &str) -> String {
    let pod = ns.pod_with(&format!("app={name}")).await;
    let said = |key: &str| pod.annotations().get(key).expect("Prometheus finds it").as_str();
    assert_eq!(said("prometheus.io/scrape"), "true");
    let url = format!("http://{}{}", at(&pod, said("prometheus.io/port").parse().unwrap()), said("prometheus.io/path"));
    String::from_utf8_lossy(&run("curl", &["-sg", "--max-time", "10", &url], "").stdout).into_owned()
}

fn at(pod: &Pod, port: u16) -> SocketAddr {
    let address: IpAddr = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).unwrap().parse().unwrap();
    SocketAddr::new(address, port)
}

/// Returns what a port for metrics serves to whoever has the certificate and key of this directory.
fn scraped_with(directory: &str, pod: &Pod, port: u16) -> String {
    let [certificate, key] = ["cert-chain.pem", "key.pem"].map(|file| format!("{directory}/{file}"));
    let url = format!("https://{}/stats/prometheus", at(pod, port));
    printed(&run("curl", &["-sSfgk", "--max-time", "10", "--cert", &certificate, "--key", &key, &url], ""))
}

/// Returns the status with which each of Istio's ports for metrics responds outside of the mesh, or 000, and whether it asks for a
/// certificate.
async fn responses(ns: &Namespace, name: &str) -> [(String, bool); 4] {
    let pod = ns.pod_with(&format!("app={name}")).await;
    [("http", 15090), ("http", 15020), ("https", 15091), ("https", 15092)].map(|(scheme, port)| {
        let url = format!("{scheme}://{}/stats/prometheus", at(&pod, port));
        let words = ["--max-time", "10", "-vgk", "-o", "/dev/null", "-w", "%{http_code}", &url];
        let output = run("curl", &words, "");
        let [status, trace] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (status, trace.contains("Request CERT"))
    })
}

#[tokio::test]
async fn prometheus_gets_the_metrics_of_a_strict_pod_and_of_its_proxy() {
    let ns = &scenario("node-scrapes", &[NODE_PROXY]).await;
    let scrape = scrape();
    let mut kept = scrape.clone();
    kept["prometheus.istio.io/merge-metrics"] = json!("false");
    let several = json!({"prometheus.istio.io/scrape-targets": "8080:/metrics"});
    // pilot-agent exits where it is to scrape Envoy's metrics as an application's.
    let mut own = scrape.clone();
    own["prometheus.io/port"] = json!("15090");
    own["prometheus.io/path"] = json!("/stats/prometheus");
    let none = json!({});
    let cases =
        [("control", &kept), ("scraped", &scrape), ("several", &several), ("no-metrics", &none), ("own-port", &own)];
    ns.create_objects(cases.iter().map(|(name, annotations)| application(name, annotations))).await;
    for (name, _) in cases {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
    }
    let served = async || scraped(ns, "control").await.contains("jobs_done_total 42").then_some(());
    ns.until("the control's metric in plaintext", served).await;
    ns.create_object(strict()).await;
    let refused = async || scraped(ns, "control").await.is_empty().then_some(());
    ns.until("the end of plaintext", refused).await;
    for (name, has_metrics) in [("scraped", true), ("several", true), ("no-metrics", false), ("own-port", false)] {
        let text = scraped(ns, name).await;
        assert!(text.contains("envoy_server_uptime") || text.contains("envoy_cluster_"), "{name}: {text}");
        assert_eq!(text.contains("jobs_done_total 42"), has_metrics, "{name}: {text}");
    }
}

#[tokio::test]
async fn metrics_of_a_namespace_that_secures_them_want_a_certificate() {
    let ns = &scenario("node-secure-scrapes", &[NODE_PROXY]).await;
    ns.create_object(application("control", &json!({}))).await;
    wait_for_rollout(ns.name(), "deployment/control");
    ns.create_object(json!({
        "apiVersion": "networking.istio.io/v1beta1",
        "kind": "ProxyConfig",
        "metadata": {"name": "secure-metrics"},
        "spec": {"environmentVariables": {
            "ENVOY_SECURE_METRICS_PORT": "15091",
            "ENVOY_SECURE_MERGED_METRICS_PORT": "15092",
            "METRICS_LOCALHOST_ACCESS_ONLY": "true",
        }},
    }))
    .await;
    until_istiod_has(ns, "ProxyConfig", &json!("15092")).await;
    ns.create_object(application("secure", &scrape())).await;
    wait_for_rollout(ns.name(), "deployment/secure");
    let expected =
        |statuses: [&str; 4], asks| [0, 1, 2, 3].map(|index| (statuses[index].to_owned(), asks && index > 1));
    assert_eq!(responses(ns, "control").await, expected(["200", "200", "000", "000"], false));
    assert_eq!(responses(ns, "secure").await, expected(["000", "403", "000", "000"], true));
    let (pod, directories) = (ns.pod_with("app=secure").await, node::certificate_directories(ns.name()));
    for port in [15091, 15092] {
        let text = scraped_with(&directories[0], &pod, port);
        assert!(text.contains("envoy_server_uptime") || text.contains("envoy_cluster_"), "{port}: {text}");
    }
    assert!(scraped_with(&directories[0], &pod, 15092).contains("jobs_done_total 42"), "the application's are merged");
}

#[tokio::test]
async fn agent_counts_the_requests_of_pods_that_no_scrape_has_seen() {
    let ns = &scenario("node-ended", &[NODE_PROXY]).await;
    let metrics = WithMetrics::begin(ended::COUNTERS);
    let _next = ended::requests_are_counted(&metrics, ns, 10, 3, WAIT_TIMEOUT).await;
}
