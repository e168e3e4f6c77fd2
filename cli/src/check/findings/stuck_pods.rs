//! Reports pods that only their proxy keeps running.

use std::time::UNIX_EPOCH;

use contract::names::PROXY_CONTAINER;

use super::super::finding::{Finding, Id};
use crate::pods::StuckPod;

/// Gives a pod so many seconds to end after its last container.
const ENDING_GRACE_SECONDS: i64 = 15;

pub(super) fn of(stuck: &[StuckPod], now: i64) -> impl Iterator<Item = Finding> {
    let is_over = move |pod: &&StuckPod| seconds(&pod.since).is_none_or(|ended| now - ended >= ENDING_GRACE_SECONDS);
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

/// Returns the seconds since 1970 of a time in RFC 3339.
fn seconds(time: &str) -> Option<i64> {
    let since = humantime::parse_rfc3339(time).ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}
