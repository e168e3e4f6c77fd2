//! Keeps what a check needs of each pod, so that only one page of pods is in memory. Pure.

use inject::{Settings, Sidecar};
use serde_json::Value;

use super::tenant::TenantPod;
use crate::pods::{ExplainedPod, Selectors, StuckPod, UnpulledShim, check_stuck, sidecar, unpulled_shim};

/// Holds what is known of the pods.
#[derive(Debug, Default)]
pub(super) struct PodFacts {
    /// Counts pods with istio-proxy as an ordinary container beside others.
    pub(super) classic: usize,
    /// Counts pods with istio-proxy as a native sidecar.
    pub(super) native: usize,
    pub(super) stuck: Vec<StuckPod>,
    pub(super) unpulled: Vec<UnpulledShim>,
    /// Explains each pod, if that was asked for.
    pub(super) decisions: Vec<ExplainedPod>,
    /// Has the facts about the same pods that matter to a tenant of Kubeflow.
    pub(super) tenants: Vec<TenantPod>,
}

impl PodFacts {
    /// Takes in one pod; with its namespace, selectors and settings, its decision too.
    pub(super) fn add(&mut self, pod: &Value, decide: Option<(&Value, &Selectors, &Settings)>) {
        match sidecar(pod) {
            Sidecar::Classic { .. } => self.classic += 1,
            Sidecar::Native => self.native += 1,
            Sidecar::None | Sidecar::Customised | Sidecar::Gateway => {}
        }
        self.stuck.extend(check_stuck(pod).ok());
        self.unpulled.extend(unpulled_shim(pod));
        if let Some((namespace, selectors, settings)) = decide {
            self.tenants.extend(TenantPod::of(pod));
            self.decisions.push(ExplainedPod::of(pod, Some(namespace), selectors, settings));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::fixtures::{stuck_pod, stuck_pod_with};

    #[test]
    fn pods_are_counted_by_their_kind_of_sidecar() {
        let native = json!({
            "metadata": {"annotations": {"sidecar.istio.io/status": r#"{"initContainers": ["istio-proxy"]}"#}},
            "spec": {
                "containers": [{"name": "main"}],
                "initContainers": [{"name": "istio-proxy", "restartPolicy": "Always"}],
            },
        });
        let gateway = stuck_pod_with("/metadata/labels", json!({"gateway.networking.k8s.io/gateway-name": "g"}));
        let without = stuck_pod_with("/spec/containers/0/name", json!("istio-init"));
        let mut facts = PodFacts::default();
        for pod in [stuck_pod(), native, gateway, without] {
            facts.add(&pod, None);
        }
        assert_eq!((facts.classic, facts.native, facts.decisions.len()), (1, 1, 0), "a gateway is neither");
    }
}
