//! What a check keeps of each pod, so that the pods themselves are in memory one page at a time. Pure.

use anyhow::Result;
use contract::names::ISTIO_STATUS_ANNOTATION;
use inject::Settings;
use serde_json::Value;

use super::tenant::TenantPod;
use crate::pods::{Decision, OptIn, StuckPod, check_stuck, decide_now, is_proxy, opt_in, recorded};

/// What is known of the pods.
#[derive(Debug, Default)]
pub(super) struct PodFacts {
    /// Pods with an ordinary container istio-proxy beside others.
    pub(super) classic: usize,
    /// Pods with istio-proxy as a native sidecar.
    pub(super) native: usize,
    pub(super) stuck: Vec<StuckPod>,
    /// One for each pod, where they were asked for.
    pub(super) decisions: Vec<PodDecision>,
    /// What matters where the namespace is a tenant's of Kubeflow, of the same pods.
    pub(super) tenants: Vec<TenantPod>,
}

/// What was decided for a pod, or would be.
#[derive(Debug)]
pub(super) struct PodDecision {
    pub(super) name: String,
    pub(super) opt_in: OptIn,
    /// What the webhook recorded.
    pub(super) recorded: Option<Decision>,
    /// What it would decide for a pod like it.
    pub(super) now: Result<Decision>,
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
            self.decisions.push(PodDecision {
                name: pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                opt_in: opt_in(namespace, pod),
                recorded: recorded(pod),
                now: decide_now(pod, settings),
            });
        }
    }
}

enum Proxy {
    Classic,
    Native,
}

/// The kind of sidecar that Istio's injector has added. A pod of istio-proxy alone is a gateway.
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

/// The one-line message for a pod's decision.
pub(super) fn describe(pod: &PodDecision) -> String {
    let name = &pod.name;
    if let Some(Decision { mode, reason, warnings }) = &pod.recorded {
        return with_warnings(format!("pod {name} has mode {mode}: {reason}"), warnings);
    }
    if !pod.opt_in.is_in() {
        return format!("pod {name}: one like it would be left as it is: {}", pod.opt_in.describe());
    }
    match &pod.now {
        Ok(Decision { mode, reason, warnings }) => {
            with_warnings(format!("pod {name}: one like it would get mode {mode}: {reason}"), warnings)
        }
        Err(error) => format!("pod {name}: {}", api::describe_error(error.as_ref())),
    }
}

fn with_warnings(line: String, warnings: &[String]) -> String {
    warnings.iter().fold(line, |line, warning| format!("{line}; {warning}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::names::PROXY_CONTAINER;
    use serde_json::json;

    /// The metadata of a pod with the injector's status.
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

    #[test]
    fn a_pod_of_a_namespace_that_is_not_opted_in_would_be_left_as_it_is() {
        let mut pod = json!({"metadata": injected(), "spec": {
            "restartPolicy": "Never", "containers": [{"name": PROXY_CONTAINER}, {"name": "main"}],
        }});
        pod["metadata"]["name"] = json!("hello");
        let namespace = |value: &str| json!({"metadata": {"name": "t", "labels": {"istio-aux.io/injection": value}}});
        let line = |namespace: &Value, pod: &Value| {
            let mut facts = PodFacts::default();
            facts.add(pod, Some((namespace, &Settings::new("shim:1"))));
            describe(&facts.decisions[0])
        };
        let outside = line(&namespace("no"), &pod);
        assert!(outside.starts_with("pod hello: one like it would be left as it is: neither"), "{outside}");
        let inside = line(&namespace("enabled"), &pod);
        assert!(inside.starts_with("pod hello: one like it would get mode native: "), "{inside}");
        let mut injected = pod;
        injected["metadata"]["annotations"] = json!({"istio-aux.io/status": r#"{"mode":"wrap","reason":"r"}"#});
        assert_eq!(line(&namespace("no"), &injected), "pod hello has mode wrap: r");
    }
}
