//! Counts what `istio-aux-controller` does. Every series exists from the start.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Classifies one check of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reconciliation {
    Unchanged,
    Changed,
    /// Something could not be done, and an event says why.
    Refused,
    /// Wraps an error of the API server.
    Failed,
}

impl Reconciliation {
    const ALL: [Self; 4] = [Self::Unchanged, Self::Changed, Self::Refused, Self::Failed];

    fn labels(self) -> Labels {
        let result = match self {
            Self::Unchanged => "unchanged",
            Self::Changed => "changed",
            Self::Refused => "refused",
            Self::Failed => "failed",
        };
        [("result", result)]
    }
}

/// Holds the name of a label with its value.
type Labels = [(&'static str, &'static str); 1];

/// Holds the controller's metrics.
#[derive(Debug)]
pub struct TenancyMetrics {
    registry: Registry,
    leader: Gauge,
    reconciliations: Family<Labels, Counter>,
    tenants: Gauge,
    refused: Gauge,
    failed: Gauge,
    /// For each namespace that asks for objects, or has a warning or a failure: whether it asks, and its last result.
    states: Mutex<HashMap<String, (bool, Reconciliation)>>,
}

impl Default for TenancyMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl TenancyMetrics {
    /// Returns the metrics before the first event.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("istio_aux");
        registry.register("build", "The version that runs", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        let leader = Gauge::default();
        registry.register("tenancy_leader", "1 in the leader, 0 in the others", leader.clone());
        let reconciliations = Family::default();
        for result in Reconciliation::ALL {
            drop(reconciliations.get_or_create(&result.labels()));
        }
        let help = "Checks of namespaces, by result";
        registry.register("tenancy_reconciliations", help, reconciliations.clone());
        let (tenants, refused, failed) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("tenancy_namespaces", "Namespaces that ask for a tenant's objects", tenants.clone());
        let help = "Namespaces with a warning; an event in each says why";
        registry.register("tenancy_refused_namespaces", help, refused.clone());
        let help = "Namespaces whose last check failed; it is tried again, and the log says why it failed";
        registry.register("tenancy_failed_namespaces", help, failed.clone());
        Self { registry, leader, reconciliations, tenants, refused, failed, states: Mutex::default() }
    }

    /// Sets the role of this replica. The other counts of a replica that does not act are 0.
    pub(super) fn set_leader(&self, is_leader: bool) {
        self.leader.set(i64::from(is_leader));
        if !is_leader {
            self.update(HashMap::clear);
        }
    }

    /// Counts one check of a namespace, and keeps its result. `is_wanted` is true if the namespace asks for objects.
    pub(super) fn checked(&self, namespace: &str, is_wanted: bool, result: Reconciliation) {
        self.reconciliations.get_or_create(&result.labels()).inc();
        let is_held = is_wanted || matches!(result, Reconciliation::Refused | Reconciliation::Failed);
        self.update(|states| {
            if is_held {
                states.insert(namespace.to_owned(), (is_wanted, result));
            } else {
                states.remove(namespace);
            }
        });
    }

    /// Forgets a namespace that is deleted.
    pub(super) fn forget(&self, namespace: &str) {
        self.update(|states| _ = states.remove(namespace));
    }

    fn update(&self, change: impl FnOnce(&mut HashMap<String, (bool, Reconciliation)>)) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut states);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.tenants.set(count(states.values().filter(|(is_wanted, _)| *is_wanted).count()));
        for (gauge, wanted) in [(&self.refused, Reconciliation::Refused), (&self.failed, Reconciliation::Failed)] {
            gauge.set(count(states.values().filter(|(_, state)| *state == wanted).count()));
        }
    }

    /// Returns all of them as text, in the format of Open Metrics.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_is_counted_once_until_forgotten() {
        let metrics = TenancyMetrics::new();
        let has = |line: &str| metrics.text().lines().any(|other| other == line);
        metrics.set_leader(true);
        metrics.checked("a", true, Reconciliation::Changed);
        metrics.checked("a", true, Reconciliation::Failed);
        metrics.checked("b", true, Reconciliation::Refused);
        metrics.checked("c", false, Reconciliation::Unchanged);
        assert!(has("istio_aux_tenancy_leader 1"));
        assert!(has("istio_aux_tenancy_namespaces 2"), "{}", metrics.text());
        assert!(has("istio_aux_tenancy_refused_namespaces 1"));
        assert!(has("istio_aux_tenancy_failed_namespaces 1"));
        assert!(has(r#"istio_aux_tenancy_reconciliations_total{result="refused"} 1"#));
        assert!(has(r#"istio_aux_tenancy_reconciliations_total{result="failed"} 1"#));
        metrics.forget("b");
        assert!(has("istio_aux_tenancy_refused_namespaces 0"));
        metrics.set_leader(false);
        assert!(has("istio_aux_tenancy_namespaces 0"));
    }
}
