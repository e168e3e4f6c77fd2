//! A day of many pods on paper: how late a controller that ends proxies by exec comes, and what it asks of the API server. Its
//! workers exec into one pod at a time each, so pods that end together wait for each other.

use crate::timing::quantile;

const DAY: u32 = 86_400;
const HOUR: u32 = 3_600;
/// So many seconds of each hour have half of its pods, as with `CronJobs`.
const RUSH: u32 = 300;
/// What an exec takes, in seconds: the median that `pod-ends` prints for `watch-and-exec`.
const EXEC: f64 = 0.14;
/// What a controller's workers come to, in a second and at once. One is controller-runtime's default. No budget of its client counts
/// execs (client-go's `remotecommand`).
const LIMITS: [(&str, f64, f64); 2] = [("one worker", 1.0 / EXEC, 1.0), ("ten workers", 10.0 / EXEC, 10.0)];
/// How long a payload runs, and how long a finished pod is kept, in seconds: both are in a controller's cache.
const LIFETIME: u64 = 300 + 3_600;
/// A pod with Istio's proxy as JSON; as objects it takes several times as much.
const POD_BYTES: u64 = 8 << 10;
/// CPU of both reviews of a pod (bench/README.md, what a review costs).
const REVIEWS_CPU_SECONDS: f64 = 60.2e-6;

/// Prints what a day of so many pods comes to.
pub(crate) fn run(pods: usize) {
    let ends = ends(pods);
    println!(
        "{pods} pods a day, half of them in the first {} minutes of an hour; a controller that watches and execs:\n",
        RUSH / 60
    );
    println!(
        "| the controller has | payload's end → exec: median, p95, max | most pods that wait |\n| --- | --- | --- |"
    );
    for (limit, rate, burst) in LIMITS {
        let (delays, longest_queue) = delays(&ends, rate, burst);
        let [median, p95] = [500, 950].map(|part| quantile(&delays, part).unwrap_or_default());
        let max = delays.last().copied().unwrap_or_default();
        println!("| {limit} | {median:.1} s, {p95:.1} s, {max:.1} s | {longest_queue} |");
    }
    let pods = u64::try_from(pods).unwrap_or(u64::MAX);
    let cached = pods * LIFETIME / u64::from(DAY);
    println!(
        "\nIts execs: {pods} a day. Its cache: {cached} pods, {} MiB of JSON, listed again at each restart.",
        (cached * POD_BYTES) >> 20
    );
    #[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
    let cpu = pods as f64 * REVIEWS_CPU_SECONDS;
    println!(
        "istio-aux: {} reviews a day, {cpu:.0} s of CPU; no request for a pod, no cache; a shim waits for no other pod.",
        2 * pods
    );
}

/// When the payloads end, in seconds of the day, in order.
fn ends(pods: usize) -> Vec<f64> {
    // The golden ratio's multiples spread evenly.
    let spread = |pod: usize| (f64::from(u32::try_from(pod).unwrap_or_default()) * 0.618_033_988_75).fract();
    let end = |pod: usize| {
        if pod.is_multiple_of(2) {
            return spread(pod) * f64::from(DAY);
        }
        let hours = spread(pod) * f64::from(DAY / HOUR);
        hours.floor().mul_add(f64::from(HOUR), hours.fract() * f64::from(RUSH))
    };
    let mut ends: Vec<f64> = (0..pods).map(end).collect();
    ends.sort_by(f64::total_cmp);
    ends
}

/// How long each pod waits for its request from a bucket of `burst` tokens that gets `rate` more each second, sorted; and the most
/// that wait at once.
fn delays(ends: &[f64], rate: f64, burst: f64) -> (Vec<f64>, usize) {
    let (mut tokens, mut at) = (burst, 0.0);
    let mut asked: Vec<f64> = Vec::with_capacity(ends.len());
    for &end in ends {
        // Requests go in the order of the ends.
        let now = end.max(at);
        tokens = (tokens + (now - at) * rate).min(burst);
        let wait = ((1.0 - tokens) / rate).max(0.0);
        tokens = (tokens + wait * rate) - 1.0;
        at = now + wait;
        asked.push(at);
    }
    let waiting = |now: f64| ends.partition_point(|end| *end <= now) - asked.partition_point(|asked| *asked <= now);
    let longest = ends.iter().map(|end| waiting(*end)).max().unwrap_or_default();
    let mut delays: Vec<f64> = ends.iter().zip(&asked).map(|(end, asked)| asked - end).collect();
    delays.sort_by(f64::total_cmp);
    (delays, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_wait_only_where_they_end_faster_than_the_limit_allows() {
        let within: Vec<f64> = (0..100_u32).map(|pod| f64::from(pod) / 10.0).collect();
        assert!(delays(&within, 20.0, 1.0).0.iter().all(|delay| *delay < 1e-9));

        // A hundred at once, of which ten go at once: the last one waits for ninety at ten a second.
        let (at_once, longest) = delays(&[0.0; 100], 10.0, 10.0);
        assert!((at_once[99] - 9.0).abs() < 1e-6 && at_once[9] < 1e-9, "{at_once:?}");
        assert_eq!(longest, 90);
    }

    #[test]
    fn half_of_the_pods_end_in_the_first_minutes_of_the_hours() {
        let ends = ends(10_000);
        let rush = ends.iter().filter(|end| *end % f64::from(HOUR) < f64::from(RUSH)).count();
        // And a twelfth of the other half.
        assert!((5_300..5_550).contains(&rush), "{rush}");
        assert!(ends.iter().all(|end| (0.0..f64::from(DAY)).contains(end)));
    }
}
