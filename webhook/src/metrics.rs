//! Counts what the webhook does, in the text format of `OpenMetrics`. Every series exists from the start, so that an alert by
//! `increase()` sees the first event.

use std::time::Duration;

use inject::review::Outcome;
use inject::{Entry, Mode};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

/// Lists the results of reviews, as their label has them.
const RESULTS: [&str; 5] = ["patched", "unchanged", "unreadable", "refused", "failed"];
/// A result of [`Entry::Node`] and [`Entry::NodeMesh`] only.
const DENIED: &str = "denied";
/// A result of [`Entry::Ended`] only.
const WITHDRAWN: &str = "withdrawn";

/// Holds the names of labels with their values.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Holds the webhook's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reviews: Family<Labels<2>, Counter>,
    tenancy_reviews: Family<Labels<2>, Counter>,
    node_reviews: Family<Labels<1>, Counter>,
    status_reviews: Family<Labels<1>, Counter>,
    duration: Histogram,
    certificate_expiry: Gauge,
    certificate_start: Gauge,
    certificate_failures: Counter,
    evictions: Counter,
}

fn review_labels(outcome: Outcome) -> Labels<2> {
    let (result, mode) = match outcome {
        Outcome::Patched(mode) => ("patched", mode),
        Outcome::Withdrawn => (WITHDRAWN, Mode::Off),
        Outcome::Unchanged(mode) => ("unchanged", mode),
        Outcome::Denied => (DENIED, Mode::Off),
        Outcome::Unreadable => ("unreadable", Mode::Off),
        Outcome::Refused => ("refused", Mode::Off),
        Outcome::Failed => ("failed", Mode::Off),
    };
    [("result", result), ("mode", mode.as_str())]
}

/// Returns every outcome of [`Entry::Injection`].
fn outcomes() -> impl Iterator<Item = Outcome> {
    let changed_or_not = [Outcome::Patched, Outcome::Unchanged].into_iter().flat_map(|outcome| Mode::ALL.map(outcome));
    changed_or_not.chain([Outcome::Unreadable, Outcome::Refused, Outcome::Failed])
}

/// Returns one counter for each of these labels.
fn counters<const N: usize>(labels: impl IntoIterator<Item = Labels<N>>) -> Family<Labels<N>, Counter> {
    let counters = Family::default();
    for labels in labels {
        drop(counters.get_or_create(&labels));
    }
    counters
}

/// Registers a metric, and returns it.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Metrics {
    /// Returns metrics that count from zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("istio_aux");
        registry.register("build", "The version that runs", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        let help = "Admission reviews by result, and by the mode of the pod after it";
        let reviews = register(&mut registry, "admission_reviews", help, counters(outcomes().map(review_labels)));
        let entries = [Entry::PipelinesToken, Entry::Mesh, Entry::InMesh, Entry::OutOfMesh].map(Entry::as_str);
        let of_entry = |entry| RESULTS.map(|result| [("entry", entry), ("result", result)]);
        let help = "Admission reviews for Kubeflow's tenants and for charms, by what they ask for and by result";
        let tenancy_reviews =
            register(&mut registry, "tenancy_reviews", help, counters(entries.into_iter().flat_map(of_entry)));
        let help = "Admission reviews for pods whose proxy runs beside them, by result";
        let of_node = RESULTS.into_iter().chain([DENIED]).map(|result| [("result", result)]);
        let node_reviews = register(&mut registry, "node_reviews", help, counters(of_node));
        let help = "Admission reviews of statuses in which the awaited containers have ended, or run again, by result";
        let of_status = RESULTS.into_iter().chain([WITHDRAWN]).map(|result| [("result", result)]);
        let status_reviews = register(&mut registry, "status_reviews", help, counters(of_status));
        // A decision takes microseconds. Much longer times are those of a busy machine.
        let duration = Histogram::new([10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 1e-3, 5e-3, 25e-3, 100e-3, 1.0]);
        let help = "Time from the last byte of a review to its response";
        let duration = register(&mut registry, "admission_duration_seconds", help, duration);
        let help = "When the served certificate expires, in seconds since 1970";
        let certificate_expiry =
            register(&mut registry, "certificate_expiry_timestamp_seconds", help, Gauge::default());
        let help = "When the served certificate became valid, in seconds since 1970";
        let certificate_start = register(&mut registry, "certificate_start_timestamp_seconds", help, Gauge::default());
        let help = "How often a certificate could not be read or used, so that the one before stayed in use";
        let certificate_failures = register(&mut registry, "certificate_reload_failures", help, Counter::default());
        let help =
            "Connections that were closed because there were too many, or because their requests held too much memory";
        let evictions = register(&mut registry, "evicted_connections", help, Counter::default());
        Self {
            registry,
            reviews,
            tenancy_reviews,
            node_reviews,
            status_reviews,
            duration,
            certificate_expiry,
            certificate_start,
            certificate_failures,
            evictions,
        }
    }

    /// Counts a review.
    pub fn review(&self, entry: Entry, outcome: Outcome, took: Duration) {
        let [result, mode] = review_labels(outcome);
        match entry {
            Entry::Injection => self.reviews.get_or_create(&[result, mode]).inc(),
            Entry::Node | Entry::NodeMesh => self.node_reviews.get_or_create(&[result]).inc(),
            Entry::Ended => self.status_reviews.get_or_create(&[result]).inc(),
            Entry::PipelinesToken | Entry::Mesh | Entry::InMesh | Entry::OutOfMesh => {
                self.tenancy_reviews.get_or_create(&[("entry", entry.as_str()), result]).inc()
            }
        };
        self.duration.observe(took.as_secs_f64());
    }

    /// Counts a request that was rejected before it was a review, whatever its path.
    pub fn refused(&self) {
        self.reviews.get_or_create(&review_labels(Outcome::Refused)).inc();
    }

    /// Sets the validity of the served certificate, in seconds since 1970.
    pub fn certificate(&self, not_before: i64, not_after: i64) {
        self.certificate_start.set(not_before);
        self.certificate_expiry.set(not_after);
    }

    /// Counts a certificate that could not be used.
    pub fn certificate_failed(&self) {
        self.certificate_failures.inc();
    }

    /// Returns the counter of evicted connections.
    pub(crate) fn evictions(&self) -> Counter {
        self.evictions.clone()
    }

    /// Returns all metrics as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_counted_by_result_and_mode() {
        let metrics = Metrics::new();
        for outcome in [Outcome::Patched(Mode::Native), Outcome::Patched(Mode::Native), Outcome::Refused] {
            metrics.review(Entry::Injection, outcome, Duration::from_micros(20));
        }
        metrics.review(Entry::Mesh, Outcome::Patched(Mode::Off), Duration::from_micros(20));
        metrics.review(Entry::InMesh, Outcome::Failed, Duration::from_micros(20));
        metrics.review(Entry::Node, Outcome::Unchanged(Mode::Off), Duration::from_micros(20));
        metrics.review(Entry::Node, Outcome::Denied, Duration::from_micros(20));
        metrics.review(Entry::Ended, Outcome::Patched(Mode::Off), Duration::from_micros(20));
        metrics.review(Entry::Ended, Outcome::Withdrawn, Duration::from_micros(20));
        metrics.certificate(1_763_709_043, 1_795_245_043);
        let text = metrics.text();
        for line in [
            r#"istio_aux_admission_reviews_total{result="patched",mode="native"} 2"#,
            r#"istio_aux_admission_reviews_total{result="refused",mode="off"} 1"#,
            r#"istio_aux_tenancy_reviews_total{entry="mesh",result="patched"} 1"#,
            r#"istio_aux_tenancy_reviews_total{entry="pipelines-token",result="failed"} 0"#,
            r#"istio_aux_tenancy_reviews_total{entry="in-mesh",result="failed"} 1"#,
            r#"istio_aux_tenancy_reviews_total{entry="out-of-mesh",result="failed"} 0"#,
            r#"istio_aux_node_reviews_total{result="unchanged"} 1"#,
            r#"istio_aux_node_reviews_total{result="denied"} 1"#,
            r#"istio_aux_status_reviews_total{result="patched"} 1"#,
            r#"istio_aux_status_reviews_total{result="withdrawn"} 1"#,
            "istio_aux_admission_duration_seconds_count 9",
            "istio_aux_certificate_start_timestamp_seconds 1763709043",
            "istio_aux_certificate_expiry_timestamp_seconds 1795245043",
            "istio_aux_certificate_reload_failures_total 0",
            concat!("istio_aux_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn every_review_series_begins_at_zero() {
        let text = Metrics::new().text();
        for series in [
            r#"result="patched",mode="native""#,
            r#"result="patched",mode="off""#,
            r#"result="unchanged",mode="off""#,
            r#"result="unreadable",mode="off""#,
            r#"result="refused",mode="off""#,
            r#"result="failed",mode="off""#,
        ] {
            let line = format!("istio_aux_admission_reviews_total{{{series}}} 0");
            assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
        }
        let series = text.lines().filter(|line| line.starts_with("istio_aux_admission_reviews_total{"));
        assert_eq!(series.count(), 15);
    }
}
