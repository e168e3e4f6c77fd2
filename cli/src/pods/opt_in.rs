//! Tells if the API server calls the webhook for a pod, by the labels of its namespace and its own. Pure.
//!
//! Follows the selectors of the webhook configuration.

use contract::names::{DISABLED, ENABLED, INJECTION_LABEL, LEGACY_INJECTION_LABEL};
use serde_json::Value;

/// Names Istio's own labels of namespaces.
const ISTIO_INJECTION_LABEL: &str = "istio-injection";
pub(crate) const REVISION_LABEL: &str = "istio.io/rev";
/// Says how Istio's injector comes to select a namespace, as an argument of `kubectl label`.
pub(crate) const INJECTOR_LABELS: &str = "istio-injection=enabled, or istio.io/rev=REVISION";
/// Is a namespace that the webhook configuration never selects.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// Tells if a pod is opted in, and by which label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OptIn {
    /// Holds the label of its namespace.
    ByNamespace(&'static str),
    ByPod,
    /// Set by the pod's label, with the value `disabled`.
    Disabled,
    SystemNamespace,
    /// Holds the value of the namespace's label, which does not opt in.
    WrongValue(String),
    Missing,
}

impl OptIn {
    /// Returns true if the API server calls the webhook.
    pub(crate) fn is_in(&self) -> bool {
        matches!(self, Self::ByNamespace(_) | Self::ByPod)
    }

    /// Describes the opt-in in one clause.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::ByNamespace(label) => format!("its namespace has the label {label}={ENABLED}"),
            Self::ByPod => format!("the pod has the label {INJECTION_LABEL}={ENABLED}"),
            Self::Disabled => format!("the pod has the label {INJECTION_LABEL}={DISABLED}"),
            Self::SystemNamespace => format!("pods of {SYSTEM_NAMESPACE} are never changed"),
            Self::WrongValue(value) => {
                format!("the label {INJECTION_LABEL} of its namespace has the invalid value {value:?}; use {ENABLED}")
            }
            Self::Missing => {
                format!("neither its namespace nor the pod has the label {INJECTION_LABEL}={ENABLED}")
            }
        }
    }
}

/// Returns the opt-in of a pod. Both objects have at least `metadata`.
pub(crate) fn opt_in(namespace: &Value, pod: &Value) -> OptIn {
    let own = label(pod, INJECTION_LABEL);
    if own == Some(DISABLED) {
        return OptIn::Disabled;
    }
    if namespace["metadata"]["name"] == SYSTEM_NAMESPACE {
        return OptIn::SystemNamespace;
    }
    match namespace_opt_in(namespace) {
        Some(label) => OptIn::ByNamespace(label),
        None if own == Some(ENABLED) => OptIn::ByPod,
        None => wrong_value(namespace).map_or(OptIn::Missing, |value| OptIn::WrongValue(value.to_owned())),
    }
}

/// Returns the value of a namespace's label that neither opts in nor out.
pub(crate) fn wrong_value(namespace: &Value) -> Option<&str> {
    let values = [INJECTION_LABEL, LEGACY_INJECTION_LABEL].map(|key| label(namespace, key));
    values.into_iter().flatten().find(|value| ![ENABLED, DISABLED].contains(value))
}

/// Returns the label by which a namespace is opted in.
pub(crate) fn namespace_opt_in(namespace: &Value) -> Option<&'static str> {
    [INJECTION_LABEL, LEGACY_INJECTION_LABEL].into_iter().find(|key| label(namespace, key) == Some(ENABLED))
}

/// Returns true if Istio's injector selects the pods of a namespace.
pub(crate) fn is_in_mesh(namespace: &Value) -> bool {
    label(namespace, ISTIO_INJECTION_LABEL) == Some("enabled") || revision(namespace).is_some()
}

/// Returns Istio's revision that a namespace asks for. Its label `istio-injection` takes precedence.
pub(crate) fn revision(namespace: &Value) -> Option<&str> {
    label(namespace, REVISION_LABEL).filter(|_| label(namespace, ISTIO_INJECTION_LABEL).is_none())
}

/// Returns a label of an object.
pub(crate) fn label<'o>(object: &'o Value, key: &str) -> Option<&'o str> {
    object["metadata"]["labels"][key].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::fixtures::labelled;
    use serde_json::json;

    #[test]
    fn labels_opt_a_pod_in_or_out() {
        let key = INJECTION_LABEL;
        let cases = [
            ("team", json!({key: "enabled"}), json!({}), OptIn::ByNamespace(INJECTION_LABEL)),
            ("team", json!({LEGACY_INJECTION_LABEL: "enabled"}), json!({}), OptIn::ByNamespace(LEGACY_INJECTION_LABEL)),
            ("team", json!({}), json!({key: "enabled"}), OptIn::ByPod),
            ("team", json!({key: "enabled"}), json!({key: "disabled"}), OptIn::Disabled),
            ("team", json!({key: "true"}), json!({}), OptIn::WrongValue("true".to_owned())),
            ("team", json!({key: "disabled"}), json!({}), OptIn::Missing),
            ("team", json!(null), json!(null), OptIn::Missing),
            ("kube-system", json!({key: "enabled"}), json!({}), OptIn::SystemNamespace),
        ];
        for (name, namespace, pod, expected) in cases {
            let opt_in = opt_in(&labelled(name, &namespace), &labelled("", &pod));
            assert_eq!(opt_in, expected, "{name} {namespace} {pod}");
            assert!(!opt_in.describe().is_empty());
        }
    }

    #[test]
    fn either_istio_label_selects_a_namespace() {
        let cases = [
            (json!({"istio-injection": "enabled"}), true),
            (json!({"istio.io/rev": "stable"}), true),
            (json!({"istio-injection": "disabled", "istio.io/rev": "stable"}), false),
            (json!({}), false),
        ];
        for (labels, expected) in cases {
            assert_eq!(is_in_mesh(&labelled("team", &labels)), expected, "{labels}");
        }
    }
}
