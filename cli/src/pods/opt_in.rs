//! Tells if the API server calls the webhook for a pod, by the labels of its namespace and its own, and by the selectors that are
//! installed. Pure.

use std::collections::BTreeMap;

use contract::names::{DISABLED, ENABLED, INJECTION_LABEL, LEGACY_INJECTION_LABEL};
use kube::core::{Expression, Selector, SelectorExt};
use serde_json::Value;

/// Names Istio's own labels of namespaces.
const ISTIO_INJECTION_LABEL: &str = "istio-injection";
pub(crate) const REVISION_LABEL: &str = "istio.io/rev";
/// Says how Istio's injector comes to select a namespace, as an argument of `kubectl label`.
pub(crate) const INJECTOR_LABELS: &str = "istio-injection=enabled, or istio.io/rev=REVISION";
/// Is a namespace that the webhook configuration never selects.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// Begins the names of the webhooks that add the shim: one for each way to opt in.
const ADD_SHIM: &str = "add-shim.";

/// Ends the names of the webhooks of Istio's injectors.
pub(crate) const INJECTOR: &str = "sidecar-injector.istio.io";

/// Holds the selectors of installed webhooks; none where they cannot be read.
#[derive(Default)]
pub(crate) struct Selectors {
    /// Holds those of the webhooks that add the shim.
    ours: Vec<OfWebhook>,
    injectors: Vec<OfWebhook>,
}

struct OfWebhook {
    namespaces: Selector,
    pods: Selector,
    /// Holds the part of `pods` about the opt-in label.
    opt_in: Selector,
}

impl Selectors {
    /// Returns those of webhook configurations.
    pub(crate) fn of(configurations: &[Value]) -> Self {
        let of_name = |is_it: fn(&str) -> bool| {
            let webhooks = configurations.iter().filter_map(|one| one["webhooks"].as_array()).flatten();
            webhooks.filter(|webhook| webhook["name"].as_str().is_some_and(is_it)).map(OfWebhook::of).collect()
        };
        let ours = of_name(|name| name.starts_with(ADD_SHIM) && name.ends_with("istio-aux.io"));
        Self { ours, injectors: of_name(|name| name.ends_with(INJECTOR)) }
    }

    /// Returns true if Istio's injector selects a namespace's pods, whatever labels of their own they have.
    pub(crate) fn is_in_mesh(&self, namespace: &Value) -> bool {
        let labels = entries(namespace, "labels");
        let selects = |one: &OfWebhook| one.namespaces.matches(&labels) && one.pods.matches(&BTreeMap::new());
        if self.injectors.is_empty() { has_istios_label(namespace) } else { self.injectors.iter().any(selects) }
    }

    /// Returns the opt-in of a pod. Both objects have at least `metadata`.
    pub(crate) fn opt_in(&self, namespace: &Value, pod: &Value) -> OptIn {
        let labels = entries(pod, "labels");
        self.corrected(opt_in(namespace, pod), namespace, |webhook| webhook.pods.matches(&labels))
    }

    /// Returns the opt-in of a namespace's pods that lack the label. Other pod selectors of a webhook do not count.
    pub(crate) fn opt_in_of_namespace(&self, namespace: &Value) -> OptIn {
        self.corrected(opt_in(namespace, &Value::Null), namespace, |webhook| webhook.opt_in.matches(&BTreeMap::new()))
    }

    fn corrected(&self, by_labels: OptIn, namespace: &Value, selects_pod: impl Fn(&OfWebhook) -> bool) -> OptIn {
        let labels = entries(namespace, "labels");
        let is_called = self.ours.iter().any(|webhook| webhook.namespaces.matches(&labels) && selects_pod(webhook));
        match (by_labels.is_in(), is_called) {
            (false, true) => OptIn::BySelector,
            (true, false) if !self.ours.is_empty() => OptIn::NotSelected,
            _ => by_labels,
        }
    }
}

impl OfWebhook {
    fn of(webhook: &Value) -> Self {
        let [namespaces, pods] = ["namespaceSelector", "objectSelector"].map(|field| expressions(&webhook[field]));
        let opt_in = pods.iter().filter(|(key, _)| *key == INJECTION_LABEL).cloned();
        let selector =
            |expressions: Vec<(&str, Expression)>| expressions.into_iter().map(|(_, expression)| expression).collect();
        Self { opt_in: selector(opt_in.collect()), namespaces: selector(namespaces), pods: selector(pods) }
    }
}

/// Returns the expressions of a label selector, each with its label. The API server has validated it.
fn expressions(selector: &Value) -> Vec<(&str, Expression)> {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| {
        (key.as_str(), Expression::Equal(key.clone(), value.as_str().unwrap_or_default().to_owned()))
    });
    let requirements = selector["matchExpressions"].as_array().into_iter().flatten();
    let requirements = requirements.map(|one| {
        let key = one["key"].as_str().unwrap_or_default();
        let values =
            || one["values"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        let expression = match one["operator"].as_str() {
            Some("In") => Expression::In(key.to_owned(), values()),
            Some("NotIn") => Expression::NotIn(key.to_owned(), values()),
            Some("Exists") => Expression::Exists(key.to_owned()),
            _ => Expression::DoesNotExist(key.to_owned()),
        };
        (key, expression)
    });
    labels.chain(requirements).collect()
}

/// Returns the labels or annotations of an object.
pub(crate) fn entries(object: &Value, field: &str) -> BTreeMap<String, String> {
    let entries = object["metadata"][field].as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Tells if a pod is opted in, and by which label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OptIn {
    /// Holds the label of its namespace.
    ByNamespace(&'static str),
    ByPod,
    /// By a selector of this installation's own.
    BySelector,
    /// By its labels only: no selector of the installation selects it.
    NotSelected,
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
        matches!(self, Self::ByNamespace(_) | Self::ByPod | Self::BySelector)
    }

    /// Describes the opt-in in one clause.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::ByNamespace(label) => format!("its namespace has the label {label}={ENABLED}"),
            Self::ByPod => format!("the pod has the label {INJECTION_LABEL}={ENABLED}"),
            Self::BySelector => "a selector of the installed webhook selects it".to_owned(),
            Self::NotSelected => "no selector of the installed webhook selects it, in spite of its label".to_owned(),
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

/// Returns the opt-in of a pod by the labels that every installation selects by.
fn opt_in(namespace: &Value, pod: &Value) -> OptIn {
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
fn namespace_opt_in(namespace: &Value) -> Option<&'static str> {
    [INJECTION_LABEL, LEGACY_INJECTION_LABEL].into_iter().find(|key| label(namespace, key) == Some(ENABLED))
}

/// Returns true if a namespace has one of the labels that Istio's injector selects by, unless it was installed otherwise.
fn has_istios_label(namespace: &Value) -> bool {
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
    fn installed_selectors_decide() {
        let webhook = |name: &str, namespaces: Value, pods: Value| json!({"name": name, "namespaceSelector": namespaces, "objectSelector": pods});
        let expression = |key: &str, operator: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]});
        let opted_in = expression(INJECTION_LABEL, "In", "enabled");
        let webhooks = [
            webhook("add-shim.namespace.istio-aux.io", opted_in.clone(), expression("app", "NotIn", "ours")),
            webhook("add-shim.selector.istio-aux.io", json!({"matchLabels": {"part-of": "profile"}}), Value::Null),
            webhook("startup-hold.namespace.istio-aux.io", Value::Null, Value::Null),
            webhook("add-shim.example.com", Value::Null, Value::Null),
        ];
        let selectors = Selectors::of(&[json!({"webhooks": webhooks})]);
        let by_namespace = OptIn::ByNamespace(INJECTION_LABEL);
        let cases = [
            (json!({INJECTION_LABEL: "enabled"}), json!({}), by_namespace.clone()),
            (json!({INJECTION_LABEL: "enabled"}), json!({"app": "ours"}), OptIn::NotSelected),
            (json!({}), json!({INJECTION_LABEL: "enabled"}), OptIn::NotSelected),
            (json!({"part-of": "profile"}), json!({}), OptIn::BySelector),
            (json!({}), json!({}), OptIn::Missing),
        ];
        for (namespace, pod, expected) in cases {
            let (namespace, pod) = (labelled("team", &namespace), labelled("", &pod));
            assert_eq!(selectors.opt_in(&namespace, &pod), expected, "{namespace} {pod}");
            assert!(!expected.describe().is_empty());
        }
        let of_namespace =
            |selectors: &Selectors, labels: Value| selectors.opt_in_of_namespace(&labelled("team", &labels));
        assert_eq!(of_namespace(&selectors, json!({"part-of": "profile"})), OptIn::BySelector);
        let only_jobs = json!({"matchLabels": {"kind": "job"}});
        let of_jobs = webhook("add-shim.namespace.istio-aux.io", opted_in, only_jobs);
        let by_pod = webhook("add-shim.pod.istio-aux.io", Value::Null, expression(INJECTION_LABEL, "In", "enabled"));
        let selectors = Selectors::of(&[json!({"webhooks": [of_jobs, by_pod]})]);
        assert_eq!(of_namespace(&selectors, json!({INJECTION_LABEL: "enabled"})), by_namespace, "its Jobs are");
        assert_eq!(of_namespace(&selectors, json!({})), OptIn::Missing, "its pods with the label are");
        let unknown = Selectors::default();
        assert_eq!(unknown.opt_in(&labelled("team", &json!({INJECTION_LABEL: "enabled"})), &Value::Null), by_namespace);
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
            assert_eq!(Selectors::default().is_in_mesh(&labelled("team", &labels)), expected, "{labels}");
        }
    }

    /// As with Istio's value `enableNamespacesByDefault`.
    #[test]
    fn installed_injectors_select_a_namespace() {
        let absent = json!({"matchExpressions": [{"key": "istio-injection", "operator": "DoesNotExist"}]});
        let of_pods = json!({"matchLabels": {"sidecar.istio.io/inject": "true"}});
        let webhooks = json!([
            {"name": "auto.sidecar-injector.istio.io", "namespaceSelector": absent, "objectSelector": {}},
            {"name": "object.sidecar-injector.istio.io", "namespaceSelector": {}, "objectSelector": of_pods},
        ]);
        let selectors = Selectors::of(&[json!({"webhooks": webhooks})]);
        assert!(selectors.is_in_mesh(&labelled("team", &json!({}))));
        assert!(!selectors.is_in_mesh(&labelled("team", &json!({"istio-injection": "disabled"}))));
    }
}
