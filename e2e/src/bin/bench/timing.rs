//! When payloads end, and what many times come to. Payloads print the machine's clock, which this program reads too: it
//! runs on the node.

use std::fmt;
use std::time::Duration;

use e2e::Namespace;

/// The machine's clock, in hundredths of a second since boot.
pub(crate) fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").expect("Linux has /proc/uptime");
    parse_uptime(&text).expect("the first number is the uptime")
}

/// The times that a container has printed by `cat /proc/uptime`, once there is one.
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

/// How long to wait before a pod is created, in seconds, other in each round: the pod before it ended at a sync of the kubelet, so
/// that all pods of a kind would be created at the same moment between two syncs, and wait alike for their containers.
pub(crate) fn creation_offset(round: usize) -> f64 {
    // Independent of the golden ratio's multiples.
    (f64::from(u32::try_from(round).unwrap_or_default()) * std::f64::consts::SQRT_2).fract()
}

/// A fraction of a second, other in each round. The kubelet syncs its pods once a second, and starts a pod's containers at
/// such a moment, so payloads of one length would all end at the same moment between two syncs.
pub(crate) fn sync_offset(round: usize) -> f64 {
    // The golden ratio's multiples spread evenly, however many there are.
    (f64::from(u32::try_from(round).unwrap_or_default()) * 0.618_034).fract()
}

/// The one of sorted values below which so many thousandths of them are; `None` where there are none.
pub(crate) fn quantile<T: Copy>(sorted: &[T], thousandths: usize) -> Option<T> {
    sorted.get(sorted.len() * thousandths / 1000).copied()
}

/// What many times come to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) min: Duration,
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Summary {
    /// `None` where there are no times.
    pub(crate) fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let (median, p99) = (quantile(&times, 500)?, quantile(&times, 990)?);
        Some(Self { min: *times.first()?, median, p99, max: *times.last()? })
    }

    /// Minimum, median and maximum as a table's cell.
    pub(crate) fn cell(self) -> String {
        let [min, median, max] = [self.min, self.median, self.max].map(|time| time.as_secs_f64());
        format!("{min:.2} s, {median:.2} s, {max:.2} s")
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [min, median, p99, max] = [self.min, self.median, self.p99, self.max].map(|time| time.as_secs_f64());
        write!(f, "min {min:.2} s median {median:.2} s p99 {p99:.2} s max {max:.2} s")
    }
}
