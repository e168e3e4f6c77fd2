//! The counters of proxies that have ended, in the agent's metrics.

use std::time::Duration;

use serde_json::{Value, json};

use super::{NextImage, WithMetrics, proxies_in, until_all_serve};
use crate::kubectl::wait_for_rollout;
use crate::manifests::{job, pod_spec, server, shell, with_annotations};
use crate::namespace::WAIT_TIMEOUT;
use crate::{Namespace, has_condition};

/// Matches the counters that are asked for: Envoy has none of Istio's metrics here.
pub const COUNTERS: &str = "bound_.*downstream_rq_total";
/// Names them in the agent's metrics.
pub const METRIC: &str = "istio_aux_node_ended_envoy_http_downstream_rq_total";

/// Fails unless the agent has counted ten requests of each of `pods` pods, which end after their last request: those that the pods'
/// proxies sent, and those that their server's proxies received, of which the first is replaced after ten requests. Returns what keeps
/// the second, and so the agent.
pub async fn requests_are_counted(
    metrics: &WithMetrics,
    ns: &Namespace,
    pods: u32,
    at_a_time: u32,
    limit: Duration,
) -> NextImage {
    let [strict, service, web] = server().try_into().expect("there are three");
    let web = with_annotations(web, &counted());
    ns.create_objects([strict, service, web.clone()]).await;
    wait_for_rollout(ns.name(), "deployment/web");
    run_clients(ns, "before", 1, 1, limit).await;
    // The agent, which is replaced too, forgets the clients' requests.
    let next = NextImage::install();
    until_all_serve(ns, 1, &next.name, WAIT_TIMEOUT).await;
    run_clients(ns, "short", pods, at_a_time, limit).await;
    ns.delete(&web).await;
    ns.until("the end of all proxies", async || proxies_in(ns.name()).is_empty().then_some(())).await;

    let found = async || {
        let samples = metrics.samples();
        let found = ["short", "web"].map(|workload| values(ns, workload, &samples));
        found.iter().all(|values| !values.is_empty() && !values.contains(&0)).then_some(found)
    };
    // A series is 0 for two minutes, so that Prometheus counts what it begins with.
    let requests = u64::from(pods) * 10;
    assert_eq!(ns.until("the requests", found).await, [vec![requests], vec![requests + 10]]);
    next
}

/// Has Envoy count the requests that it sends and receives.
fn counted() -> Value {
    json!({"proxy.istio.io/config": "proxyStatsMatcher: {inclusionRegexps: ['http.*']}"})
}

/// Runs a Job whose pods make ten requests each.
async fn run_clients(ns: &Namespace, name: &str, pods: u32, at_a_time: u32, limit: Duration) {
    let ask = "for number in $(seq 10); do curl -sSf -o /dev/null http://web/ || exit 1; done";
    let mut clients = job(name, &pod_spec("Never", &[shell("main", ask)]));
    (clients["spec"]["completions"], clients["spec"]["parallelism"]) = (json!(pods), json!(at_a_time));
    clients["spec"]["template"]["metadata"] = json!({"annotations": counted()});
    ns.create_object(clients.clone()).await;
    let is_complete = async || has_condition(&ns.get(&clients).await, "Complete").then_some(());
    ns.until_within(limit, "the end of all", is_complete).await;
    assert_eq!(ns.pods_with(&format!("job-name={name}")).await.len(), pods as usize, "none has failed");
}

/// Returns the values of the requests' series of a workload.
fn values(ns: &Namespace, workload: &str, samples: &[String]) -> Vec<u64> {
    let labels = format!(r#"namespace="{}",workload="{workload}",service_account="default","#, ns.name());
    let prefix = format!("{METRIC}{{{labels}");
    let samples = samples.iter().filter_map(|sample| sample.strip_prefix(&prefix));
    samples.filter_map(|sample| sample.rsplit(' ').next()?.parse().ok()).collect()
}
