//! Reads the decision that a pod records, and decides again. Pure.

use anyhow::{Context, Result};
use contract::names::{PROXY_CONTAINER, SHIM_LABEL, STATUS_ANNOTATION};
use inject::pod::Pod;
use inject::{Settings, Sidecar, decide};
use serde::Serialize;
use serde_json::Value;

use super::opt_in::{Selectors, label};
use crate::text::one_line;

/// Holds a decision of the webhook, as it is recorded and printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Decision {
    pub(crate) mode: String,
    pub(crate) reason: String,
    /// Names the containers that the shim waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) waits_for: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

impl From<inject::Decision> for Decision {
    fn from(decision: inject::Decision) -> Self {
        let (mode, reason) = (decision.mode.as_str().to_owned(), decision.reason.to_owned());
        Self { mode, reason, waits_for: Vec::new(), warnings: decision.warnings }
    }
}

impl Decision {
    /// Describes the decision for a person, with a separator before each warning.
    pub(crate) fn describe(&self, separator: &str) -> String {
        let waits_for = self.waits_for.join(", ");
        let waits_for = if waits_for.is_empty() { waits_for } else { format!("; waits for {waits_for}") };
        with_warnings(&format!("mode {}: {}{waits_for}", self.mode, self.reason), &self.warnings, separator)
    }
}

/// Appends warnings to a line, each after a separator. The pod's owner may have written both.
pub(crate) fn with_warnings(line: &str, warnings: &[String], separator: &str) -> String {
    warnings.iter().fold(one_line(line), |line, warning| format!("{line}{separator}{}", one_line(warning)))
}

/// Returns the decision that the webhook recorded in a pod.
pub(crate) fn recorded(pod: &Value) -> Option<Decision> {
    let annotation = pod["metadata"]["annotations"][STATUS_ANNOTATION].as_str();
    let status: Value = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mode = status["mode"].as_str().or(label(pod, SHIM_LABEL))?;
    let reason = status["reason"].as_str().unwrap_or("no reason is recorded");
    let list = |field: &str| {
        let words = status[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        words.map(str::to_owned).collect()
    };
    Some(Decision {
        mode: mode.to_owned(),
        reason: reason.to_owned(),
        waits_for: list("wait-for"),
        warnings: list("warnings"),
    })
}

/// Decides for a pod as it is now. `Err` if the pod cannot be read.
pub(crate) fn decide_now(pod: &Value, settings: &Settings) -> Result<inject::Decision> {
    let pod = parse(pod).context("the pod cannot be read")?;
    Ok(decide(&pod, settings))
}

/// Parses a pod as decisions see it. Its raw values can be read from text only.
pub(super) fn parse(pod: &Value) -> serde_json::Result<Pod> {
    serde_json::from_str(&pod.to_string())
}

/// Explains what was decided for a pod.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedPod {
    pub(crate) name: String,
    pub(crate) phase: String,
    /// Is what the webhook recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<Decision>,
    /// Says why the webhook recorded nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unchanged: Option<String>,
    /// Names the containers that run on after the proxy has ended, and keep the pod from its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) run_on: Vec<String>,
}

impl ExplainedPod {
    /// Explains a pod of a namespace, which is `None` if it cannot be read.
    pub(crate) fn of(pod: &Value, namespace: Option<&Value>, selectors: &Selectors, settings: &Settings) -> Self {
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let decision = recorded(pod);
        let missed = "it was created before its namespace was opted in, or while the webhook did not answer";
        let unchanged = decision.is_none().then(|| why_unchanged(pod, namespace, selectors, settings, missed));
        let run_on = decision.as_ref().map_or_else(Vec::new, |_| without_proxy(pod));
        Self { name: text("/metadata/name"), phase: text("/status/phase"), decision, unchanged, run_on }
    }

    /// Describes the pod for a person, with a separator before each warning.
    pub(crate) fn describe(&self, separator: &str) -> String {
        let explained = match (&self.decision, &self.unchanged) {
            (Some(decision), _) => decision.describe(separator),
            (None, reason) => format!("not changed by istio-aux: {}", reason.as_deref().unwrap_or_default()),
        };
        let line = format!("pod {} ({}): {explained}", self.name, self.phase);
        if self.run_on.is_empty() {
            return line;
        }
        let names = self.run_on.join(", ");
        format!(
            "{line}{separator}its proxy has ended, and {names} runs on: make it a native sidecar, or have it asked by istio-aux.io/quit"
        )
    }
}

/// Returns the containers that run while an ordinary proxy has ended; none where it runs.
fn without_proxy(pod: &Value) -> Vec<String> {
    let statuses = || pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let has_ended = |status: &Value| status["name"] == PROXY_CONTAINER && !status["state"]["terminated"].is_null();
    if !statuses().any(has_ended) {
        return Vec::new();
    }
    let running = statuses().filter(|status| !status["state"]["running"].is_null());
    running.filter_map(|status| status["name"].as_str().map(str::to_owned)).collect()
}

/// Returns why a pod has no recorded decision. `missed` is the reason for a pod that would get the shim.
pub(crate) fn why_unchanged(
    pod: &Value,
    namespace: Option<&Value>,
    selectors: &Selectors,
    settings: &Settings,
    missed: &str,
) -> String {
    match namespace.map(|namespace| selectors.opt_in(namespace, pod)) {
        Some(opt_in) if !opt_in.is_in() => return opt_in.describe(),
        _ => {}
    }
    match decide_now(pod, settings) {
        Ok(decision) if decision.mode.has_shim() => missed.to_owned(),
        Ok(decision) => decision.reason.to_owned(),
        Err(error) => api::describe_error(error.as_ref()),
    }
}

/// Returns how Istio's proxy is in a pod; `None` if the pod cannot be read.
pub(crate) fn sidecar(pod: &Value) -> Sidecar {
    parse(pod).map_or(Sidecar::None, |pod| Sidecar::of(&pod))
}

/// Returns true if Istio's injector, or `istioctl kube-inject`, has added its proxy to a pod.
pub(crate) fn is_rendered(pod: &Value) -> bool {
    matches!(sidecar(pod), Sidecar::Classic { .. } | Sidecar::Native)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::OptIn;
    use crate::pods::fixtures::{labelled, stuck_pod};
    use serde_json::json;

    #[test]
    fn recorded_decision_is_read_from_the_metadata() {
        let annotated = |text: &str| json!({"metadata": {"annotations": {STATUS_ANNOTATION: text}}});
        let decision = |reason: &str, warnings: &[&str]| {
            let warnings = warnings.iter().map(|warning| (*warning).to_owned()).collect();
            Some(Decision { mode: "native".to_owned(), reason: reason.to_owned(), waits_for: Vec::new(), warnings })
        };
        let cases = [
            (annotated(r#"{"mode": "native", "reason": "r", "warnings": ["w"]}"#), decision("r", &["w"])),
            (json!({"metadata": {"labels": {SHIM_LABEL: "native"}}}), decision("no reason is recorded", &[])),
            (annotated("no JSON"), None),
            (json!({"metadata": {}}), None),
        ];
        for (pod, expected) in cases {
            assert_eq!(recorded(&pod), expected, "{pod}");
        }
    }

    #[test]
    fn container_that_outlives_the_proxy_is_named() {
        let ended = || json!({"terminated": {"exitCode": 0}});
        let mut pod = stuck_pod();
        let status = json!({"mode": "native", "reason": "r", "wait-for": ["main"]}).to_string();
        json_patch::merge(&mut pod["metadata"], &json!({"annotations": {STATUS_ANNOTATION: status}}));
        let line =
            |pod: &Value| ExplainedPod::of(pod, None, &Selectors::default(), &Settings::new("shim:1")).describe("; ");
        assert_eq!(line(&pod), "pod hello (Running): mode native: r; waits for main");
        pod["status"]["containerStatuses"] = json!([
            {"name": "main", "state": ended()}, {"name": "istio-proxy", "state": ended()},
            {"name": "helper", "state": {"running": {}}},
        ]);
        let hint =
            "its proxy has ended, and helper runs on: make it a native sidecar, or have it asked by istio-aux.io/quit";
        assert_eq!(line(&pod), format!("pod hello (Running): mode native: r; waits for main; {hint}"));
    }

    #[test]
    fn new_decision_has_mode_and_reason() {
        let decision = Decision::from(decide_now(&stuck_pod(), &Settings::new("shim:1")).unwrap());
        assert_eq!(decision.mode, "native");
        assert!(!decision.reason.is_empty());
        assert!(decide_now(&json!({"spec": 3}), &Settings::new("shim:1")).is_err());
    }

    #[test]
    fn pod_without_a_decision_has_the_reason() {
        const MISSED: &str = "it was created before its namespace was opted in, or while the webhook did not answer";
        let opted_in = labelled("team", &json!({"istio-aux.io/injection": "enabled"}));
        let other = json!({"metadata": {"name": "team"}});
        let off = json!({"annotations": {"istio-aux.io/mode": "off"}});
        let out = json!({"labels": {"istio-aux.io/injection": "disabled"}});
        let cases = [
            (Some(&opted_in), json!({}), MISSED),
            (None, json!({}), MISSED),
            (Some(&opted_in), off, "the pod opted out, by istio-aux.io/mode"),
            (Some(&opted_in), out, &OptIn::Disabled.describe()),
            (Some(&other), json!({}), &OptIn::Missing.describe()),
        ];
        for (namespace, metadata, reason) in cases {
            let mut pod = stuck_pod();
            json_patch::merge(&mut pod["metadata"], &metadata);
            let line =
                ExplainedPod::of(&pod, namespace, &Selectors::default(), &Settings::new("shim:1")).describe("; ");
            assert_eq!(line, format!("pod hello (Running): not changed by istio-aux: {reason}"));
        }
    }
}
