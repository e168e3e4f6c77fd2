//! Reports pods that only their proxy keeps running.

use std::collections::BTreeMap;

use contract::names::PROXY_CONTAINER;
use k8s_openapi::jiff::Timestamp;

use super::super::finding::{Finding, Id};
use super::some;
use crate::pods::StuckPod;

/// Gives a pod so many seconds to end after its last container.
const ENDING_GRACE_SECONDS: i64 = 15;
/// Limits the pods of a namespace that have a finding each.
const EACH_LIMIT: usize = 20;

pub(super) fn of(stuck: &[StuckPod], now: i64) -> impl Iterator<Item = Finding> {
    let is_over = move |pod: &&StuckPod| {
        let ended = pod.since.parse::<Timestamp>().ok();
        ended.is_none_or(|ended| now - ended.as_second() >= ENDING_GRACE_SECONDS)
    };
    let mut by_namespace: BTreeMap<&str, Vec<&StuckPod>> = BTreeMap::new();
    for pod in stuck.iter().filter(is_over) {
        by_namespace.entry(&pod.namespace).or_default().push(pod);
    }
    by_namespace.into_iter().flat_map(|(namespace, pods)| {
        if pods.len() > EACH_LIMIT {
            vec![of_namespace(namespace, &pods)]
        } else {
            pods.into_iter().map(of_pod).collect()
        }
    })
}

fn of_pod(StuckPod { namespace, name, since, .. }: &StuckPod) -> Finding {
    Finding::problem(
        Id::StuckPod,
        format!("pod {namespace}/{name} is stuck: its containers ended at {since}, and only {PROXY_CONTAINER} runs"),
        format!("istio-aux finish -n {namespace} {name}"),
    )
}

fn of_namespace(namespace: &str, pods: &[&StuckPod]) -> Finding {
    let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    Finding::problem(
        Id::StuckPod,
        format!("{} pods of {namespace} are stuck: only {PROXY_CONTAINER} runs in them: {}", pods.len(), some(&names)),
        format!("istio-aux finish -n {namespace} --all-stuck"),
    )
}
