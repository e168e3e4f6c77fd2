//! Reports pods that only their proxy keeps running.

use contract::names::PROXY_CONTAINER;
use k8s_openapi::jiff::Timestamp;

use super::super::finding::{Finding, Id};
use crate::pods::StuckPod;

/// Gives a pod so many seconds to end after its last container.
const ENDING_GRACE_SECONDS: i64 = 15;

pub(super) fn of(stuck: &[StuckPod], now: i64) -> impl Iterator<Item = Finding> {
    let is_over = move |pod: &&StuckPod| {
        let ended = pod.since.parse::<Timestamp>().ok();
        ended.is_none_or(|ended| now - ended.as_second() >= ENDING_GRACE_SECONDS)
    };
    stuck.iter().filter(is_over).map(|StuckPod { namespace, name, since, .. }| {
        Finding::problem(
            Id::StuckPod,
            format!(
                "pod {namespace}/{name} is stuck: its containers ended at {since}, and only {PROXY_CONTAINER} runs"
            ),
            format!("istio-aux finish -n {namespace} {name}"),
        )
    })
}
