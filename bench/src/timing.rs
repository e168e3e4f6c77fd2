//! Reads when payloads began and ended, and spreads their moments and order. Payloads print the machine's clock, which this
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
pub(crate) fn parse_uptime(line: &str) -> Option<Duration> {
    let (uptime, _idle) = line.trim().split_once(' ')?;
    Duration::try_from_secs_f64(uptime.parse().ok()?).ok()
}

/// Returns how long to wait before a pod is created, in seconds, other in each round: the pod before it ended at a sync of the kubelet, so
/// that all pods of a kind would be created at the same moment between two syncs, and wait alike for their containers.
pub(crate) fn creation_offset(round: usize) -> f64 {
    offset(round, 0.754_877_67)
}

/// Returns a fraction of a second, other in each round. The kubelet syncs its pods once a second, and starts a pod's containers at
/// such a moment, so payloads of one length would all end at the same moment between two syncs.
pub(crate) fn sync_offset(round: usize) -> f64 {
    offset(round, 0.569_840_29)
}

/// Returns the multiple of a step, without its whole part. Multiples of these two steps, and of their sum, spread evenly, however many
/// there are: the first two powers of 1/1.3247…, the plastic ratio.
fn offset(round: usize, step: f64) -> f64 {
    (f64::from(u32::try_from(round).unwrap_or_default()) * step).fract()
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

/// Returns the numbers below `count` in an order that `next` chooses.
pub(crate) fn shuffled(count: usize, mut next: impl FnMut() -> usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, next() % (last + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn creations_ends_and_their_sum_are_spread_evenly() {
        // A payload ends at the sum where its start takes the same time in each round.
        let sum = |round| (creation_offset(round) + sync_offset(round)).fract();
        for offset in [creation_offset, sync_offset, sum] {
            for rounds in [10, 15, 30, 40] {
                let mut moments: Vec<f64> = (0..rounds).map(offset).collect();
                moments.sort_by(f64::total_cmp);
                let around = moments[0] + 1.0 - moments[moments.len() - 1];
                let gap = moments.windows(2).map(|pair| pair[1] - pair[0]).fold(around, f64::max);
                assert!(gap < 4.0 / f64::from(u32::try_from(rounds).unwrap()), "{rounds}: {gap}");
            }
        }
    }

    #[test]
    fn orders_have_every_kind_once_and_many_predecessors_of_each() {
        let mut next = random(1);
        let orders: Vec<Vec<usize>> = (0..30).map(|_| shuffled(7, &mut next)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6], "{order:?}");
        }
        let pairs = orders.iter().flat_map(|order| order.windows(2).map(|pair| (pair[0], pair[1])));
        let pairs: HashSet<(usize, usize)> = pairs.collect();
        for kind in 0..7 {
            let before = pairs.iter().filter(|(_, second)| *second == kind).count();
            assert!(before >= 5, "{kind} has {before} kinds before it in some round");
        }
    }
}
