//! What was decided for a pod, and what would be decided now. Pure.

use anyhow::{Context, Result};
use contract::names::{SHIM_LABEL, STATUS_ANNOTATION};
use inject::{Settings, Sidecar, decide};
use serde::Serialize;
use serde_json::Value;

use super::opt_in::label;

/// A decision of the webhook's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Decision {
    /// What the pod has of ours.
    pub(crate) mode: String,
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// The decision that the webhook recorded in a pod; `None` where it recorded none.
pub(crate) fn recorded(pod: &Value) -> Option<Decision> {
    let annotation = pod["metadata"]["annotations"][STATUS_ANNOTATION].as_str();
    let status: Value = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mode = status["mode"].as_str().or(label(pod, SHIM_LABEL))?;
    let reason = status["reason"].as_str().unwrap_or("no reason is recorded");
    let warnings = status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Some(Decision { mode: mode.to_owned(), reason: reason.to_owned(), warnings: warnings.map(str::to_owned).collect() })
}

/// The decision for a pod as it is now; `Err` where it is no pod that can be read.
pub(crate) fn decide_now(pod: &Value, settings: &Settings) -> Result<Decision> {
    let text = pod.to_string();
    let pod = serde_json::from_str(&text).context("the pod cannot be read")?;
    let decision = decide(&pod, settings);
    Ok(Decision {
        mode: decision.mode.as_str().to_owned(),
        reason: decision.reason.to_owned(),
        warnings: decision.warnings,
    })
}

/// Whether Istio's injector, or `istioctl kube-inject`, has added its proxy to a pod, as either kind of sidecar.
pub(crate) fn is_rendered(pod: &Value) -> bool {
    let text = pod.to_string();
    let sidecar = serde_json::from_str(&text).map(|pod| Sidecar::of(&pod));
    matches!(sidecar, Ok(Sidecar::Classic { .. } | Sidecar::Native))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_recorded_decision_is_read_from_annotation_and_label() {
        let annotated = |text: &str| json!({"metadata": {"annotations": {STATUS_ANNOTATION: text}}});
        let decision = |reason: &str, warnings: &[&str]| {
            let warnings = warnings.iter().map(|warning| (*warning).to_owned()).collect();
            Some(Decision { mode: "native".to_owned(), reason: reason.to_owned(), warnings })
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
    fn the_present_decision_has_mode_and_reason() {
        let annotations = json!({"sidecar.istio.io/status": r#"{"containers": ["istio-proxy"]}"#});
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {
            "restartPolicy": "Never", "containers": [{"name": "istio-proxy"}, {"name": "main"}],
        }});
        let decision = decide_now(&pod, &Settings::new("shim:1")).unwrap();
        assert_eq!(decision.mode, "native");
        assert!(!decision.reason.is_empty());
        assert!(decide_now(&json!({"spec": 3}), &Settings::new("shim:1")).is_err());
    }
}
