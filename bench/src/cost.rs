//! Measures what a pod costs: CPU and memory of its cgroup, the kubelet's syncs, requests to the API server.

use std::time::Duration;

use e2e::Namespace;
use e2e::audit::Audit;
use e2e::cluster::client;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use crate::cgroup;

/// Holds what one pod has used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Of all containers, until the pod's end.
    pub(crate) cpu: Duration,
    /// The largest working set, in bytes.
    pub(crate) memory: u64,
    /// How often the kubelet worked on a pod meanwhile.
    pub(crate) syncs: u64,
    /// What others than this program asked the API server for, and were answered to the end, in the pod's namespace.
    pub(crate) requests: usize,
}

/// Holds what had been counted before a pod was created.
pub(crate) struct Meter {
    client: Client,
    audit: Audit,
    syncs: u64,
}

impl Meter {
    pub(crate) async fn start() -> Self {
        let client = client().await;
        let syncs = syncs(&client).await;
        Self { client, audit: Audit::from_now(), syncs }
    }

    /// Waits for the pod's end, and returns what it used until then.
    pub(crate) async fn until<T>(self, ns: &Namespace, uid: &str, end: impl Future<Output = T>) -> (T, Cost) {
        let (mut cpu, mut memory) = (Duration::ZERO, 0);
        let sample = async {
            loop {
                cpu = cgroup::cpu(uid).unwrap_or(cpu).max(cpu);
                memory = cgroup::memory(uid).unwrap_or_default().max(memory);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let end = tokio::select! {
            never = sample => never,
            end = end => end,
        };
        let in_namespace = |event: &serde_json::Value| {
            (event["objectRef"]["namespace"] == ns.name() && event["stage"] == "ResponseComplete").then(String::new)
        };
        let requests = self.audit.count(in_namespace).into_values().sum();
        (end, Cost { cpu, memory, syncs: syncs(&self.client).await - self.syncs, requests })
    }
}

/// Reads how often the kubelet has worked on a pod since it was started.
async fn syncs(client: &Client) -> u64 {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.expect("nodes are listed");
    let path = format!("/api/v1/nodes/{}/proxy/metrics", nodes.items[0].name_any());
    let request = http::Request::get(path).body(Vec::new()).expect("it is a request");
    let metrics = client.request_text(request).await.expect("the kubelet has metrics");
    let counts = metrics.lines().filter(|line| line.starts_with("kubelet_pod_worker_duration_seconds_count"));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
