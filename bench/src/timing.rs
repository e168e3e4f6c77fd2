//! Reads when payloads began and ended, and spreads their moments. Payloads print the machine's clock, which this
//! program reads too: it runs on the node.

use std::time::Duration;

use e2e::Namespace;

/// Reads the machine's clock, in hundredths of a second since boot.
pub(crate) fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").expect("Linux has /proc/uptime");
    parse_uptime(&text).expect("the first number is the uptime")
}

/// Returns the times that a container has printed by `cat /proc/uptime`, once there is one.
pub(crate) async fn printed_uptimes(ns: &Namespace, pod: &str, container: &str) -> Vec<Duration> {
    ns.until(&format!("a time in the log of {container} in pod {pod}"), async || {
        let log = ns.try_logs(pod, container).await?;
        let times: Vec<Duration> = log.lines().filter_map(parse_uptime).collect();
        (!times.is_empty()).then_some(times)
    })
    .await
}

/// Reads a line of `/proc/uptime`: seconds since boot, and seconds that the processors were idle.
fn parse_uptime(line: &str) -> Option<Duration> {
    let (uptime, _idle) = line.trim().split_once(' ')?;
    Duration::try_from_secs_f64(uptime.parse().ok()?).ok()
}

/// Returns how long to wait before a pod is created, in seconds, other in each round: the pod before it ended at a sync of the kubelet, so
/// that all pods of a kind would be created at the same moment between two syncs, and wait alike for their containers.
pub(crate) fn creation_offset(round: usize) -> f64 {
    // Independent of the golden ratio's multiples.
    (f64::from(u32::try_from(round).unwrap_or_default()) * std::f64::consts::SQRT_2).fract()
}

/// Returns a fraction of a second, other in each round. The kubelet syncs its pods once a second, and starts a pod's containers at
/// such a moment, so payloads of one length would all end at the same moment between two syncs.
pub(crate) fn sync_offset(round: usize) -> f64 {
    // The golden ratio's multiples spread evenly, however many there are.
    (f64::from(u32::try_from(round).unwrap_or_default()) * 0.618_034).fract()
}

/// Returns the one of sorted values below which so many thousandths of them are; `None` where there are none.
pub(crate) fn quantile<T: Copy>(sorted: &[T], thousandths: usize) -> Option<T> {
    sorted.get(sorted.len() * thousandths / 1000).copied()
}

/// Returns an endless sequence of numbers that look random, the same for the same seed (Knuth's MMIX).
pub(crate) fn random(seed: u64) -> impl FnMut() -> usize {
    let mut state = seed;
    move || {
        state = 6_364_136_223_846_793_005_u64.wrapping_mul(state).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or_default()
    }
}
