//! What is counted and timed, in the text format of `OpenMetrics`. Only the names are here; each is fed where it happens.

use std::time::Duration;

use inject::{Mode, review::Outcome};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The webhook's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reviews: Family<Review, Counter>,
    duration: Histogram,
    certificate_expiry: Gauge,
    certificate_failures: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Review {
    result: &'static str,
    mode: &'static str,
}

impl Metrics {
    /// Metrics that count from zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("istio_aux");
        let reviews = Family::default();
        registry.register(
            "admission_reviews",
            "Admission reviews by result, and by the mode that the pod has then",
            reviews.clone(),
        );
        // A decision takes microseconds; what is much longer is a busy machine.
        let duration = Histogram::new([10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 1e-3, 5e-3, 25e-3, 100e-3, 1.0]);
        registry.register(
            "admission_duration_seconds",
            "Time from a review's last byte to its answer",
            duration.clone(),
        );
        let certificate_expiry = Gauge::default();
        let help = "When the certificate that is served expires, in seconds since 1970";
        registry.register("certificate_expiry_timestamp_seconds", help, certificate_expiry.clone());
        let certificate_failures = Counter::default();
        let help = "How often a certificate could not be read, kept or used, and the one before it stayed";
        registry.register("certificate_reload_failures", help, certificate_failures.clone());
        Self { registry, reviews, duration, certificate_expiry, certificate_failures }
    }

    /// Counts a review.
    pub fn review(&self, outcome: Outcome, took: Duration) {
        let (result, mode) = match outcome {
            Outcome::Patched(mode) => ("patched", mode),
            Outcome::Unchanged(mode) => ("unchanged", mode),
            Outcome::Refused => ("refused", Mode::None),
            Outcome::Failed => ("failed", Mode::None),
        };
        self.reviews.get_or_create(&Review { result, mode: mode.as_str() }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// Counts a request that was refused before it was a review.
    pub fn refused(&self) {
        self.reviews.get_or_create(&Review { result: "refused", mode: Mode::None.as_str() }).inc();
    }

    /// Takes note of when the certificate that is served expires.
    pub fn certificate(&self, expires: i64) {
        self.certificate_expiry.set(expires);
    }

    /// Counts a certificate that could not be used.
    pub fn certificate_failed(&self) {
        self.certificate_failures.inc();
    }

    /// All of them as text.
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
            metrics.review(outcome, Duration::from_micros(20));
        }
        metrics.certificate(1_795_245_043);
        let text = metrics.text();
        for line in [
            r#"istio_aux_admission_reviews_total{result="patched",mode="native"} 2"#,
            r#"istio_aux_admission_reviews_total{result="refused",mode="none"} 1"#,
            "istio_aux_admission_duration_seconds_count 3",
            "istio_aux_certificate_expiry_timestamp_seconds 1795245043",
            "istio_aux_certificate_reload_failures_total 0",
        ] {
            assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
        }
    }
}
