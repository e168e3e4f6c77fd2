//! Keeps what a check needs of each pod, so that only one page of pods is in memory. Pure.

use contract::names::ISTIO_STATUS_ANNOTATION;
use inject::Settings;
use serde_json::Value;

use super::tenant::TenantPod;
use crate::pods::{ExplainedPod, StuckPod, check_stuck, is_proxy};

/// Holds what is known of the pods.
#[derive(Debug, Default)]
pub(super) struct PodFacts {
    /// Counts pods with istio-proxy as an ordinary container beside others.
    pub(super) classic: usize,
    /// Counts pods with istio-proxy as a native sidecar.
    pub(super) native: usize,
    pub(super) stuck: Vec<StuckPod>,
    /// Explains each pod, if that was asked for.
    pub(super) decisions: Vec<ExplainedPod>,
    /// Has the facts about the same pods that matter to a tenant of Kubeflow.
    pub(super) tenants: Vec<TenantPod>,
}

impl PodFacts {
    /// Takes in one pod; with its namespace and settings, its decision too.
    pub(super) fn add(&mut self, pod: &Value, decide: Option<(&Value, &Settings)>) {
        match proxy(pod) {
            Some(Proxy::Classic) => self.classic += 1,
            Some(Proxy::Native) => self.native += 1,
            None => {}
        }
        self.stuck.extend(check_stuck(pod).ok());
        if let Some((namespace, settings)) = decide {
            self.tenants.extend(TenantPod::of(pod));
            self.decisions.push(ExplainedPod::of(pod, Some(namespace), settings));
        }
    }
}

enum Proxy {
    Classic,
    Native,
}

/// Returns the kind of sidecar that Istio's injector has added. A pod of istio-proxy alone is a gateway.
fn proxy(pod: &Value) -> Option<Proxy> {
    if pod["metadata"]["annotations"][ISTIO_STATUS_ANNOTATION].is_null() {
        return None;
    }
    let list = |field: &str| pod["spec"][field].as_array().map_or(&[][..], Vec::as_slice);
    let is_native = |container: &&Value| is_proxy(container) && container["restartPolicy"] == "Always";
    if list("containers").iter().any(is_proxy) {
        (list("containers").len() > 1).then_some(Proxy::Classic)
    } else {
        list("initContainers").iter().find(is_native).map(|_| Proxy::Native)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::names::PROXY_CONTAINER;
    use serde_json::json;

    fn injected() -> Value {
        json!({"annotations": {ISTIO_STATUS_ANNOTATION: r#"{"containers": ["istio-proxy"]}"#}})
    }

    #[test]
    fn pods_are_counted_by_their_kind_of_sidecar() {
        let pod = |containers: &[&str], init: Value| {
            let containers: Vec<Value> = containers.iter().map(|name| json!({"name": name})).collect();
            json!({"metadata": injected(), "spec": {"containers": containers, "initContainers": init}})
        };
        let native = json!([{"name": PROXY_CONTAINER, "restartPolicy": "Always"}]);
        let mut facts = PodFacts::default();
        for pod in [
            pod(&["main", PROXY_CONTAINER], json!(null)),
            pod(&["main"], native),
            pod(&[PROXY_CONTAINER], json!([])),
            pod(&["main"], json!([{"name": "istio-init"}])),
        ] {
            facts.add(&pod, None);
        }
        assert_eq!((facts.classic, facts.native, facts.decisions.len()), (1, 1, 0), "a gateway is neither");
    }
}
