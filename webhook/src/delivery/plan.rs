//! What to do in a namespace about the shim's `ConfigMap`: from its labels and what is there. Pure.
//!
//! The label says that the `ConfigMap` is there, and the webhook's configuration sends only such namespaces' pods to the path
//! that mounts it. So the label is set after the `ConfigMap` is there, and goes before that is given up. No `ConfigMap` is ever
//! deleted here: pods may mount it, and the account cannot see them.

use contract::names::{
    ENABLED, INJECTION_LABEL, SHIM_CONFIG_MAP_PREFIX, SHIM_DELIVERY_COPY, SHIM_DELIVERY_LABEL, SHIM_DELIVERY_PREFIX,
};
use serde_json::Value;

use super::binary::ShimBinary;
use crate::tenancy::{Map, Notice, is_ours};

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Observed {
    /// The admission policies are not in force, for this reason.
    Unguarded(String),
    /// There is no `ConfigMap` of the name.
    Missing,
    /// The `ConfigMap` is there and as it should be.
    Delivered,
    /// There is one of the name that pods must not mount, for this reason.
    Unusable(&'static str),
}

/// What to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) notices: Vec<Notice>,
}

/// A change, in this order: a step that fails keeps those after it from being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Creates the `ConfigMap`.
    Create,
    /// Sets the label to this value.
    Label(String),
    /// Removes the label.
    Unlabel,
}

/// The label's value where this version's `ConfigMap` is there.
pub(crate) fn label_value() -> String {
    format!("{SHIM_DELIVERY_PREFIX}{}", env!("CARGO_PKG_VERSION"))
}

/// Whether a namespace is to have the `ConfigMap`, by its labels.
pub(crate) fn wants_config_map(labels: &Map) -> bool {
    let is = |key: &str, value: &str| labels.get(key).is_some_and(|given| given == value);
    is(INJECTION_LABEL, ENABLED) && !is(SHIM_DELIVERY_LABEL, SHIM_DELIVERY_COPY)
}

/// Whether the API server keeps the content of a `ConfigMap` as it is.
pub(crate) fn is_immutable(config_map: &Value) -> bool {
    config_map["immutable"] == true
}

/// Judges the `ConfigMap` of the binary's name.
pub(super) fn judge(binary: &ShimBinary, config_map: &Value) -> Observed {
    if !is_ours(config_map) {
        Observed::Unusable("is somebody else's")
    } else if !is_immutable(config_map) {
        Observed::Unusable("can be changed")
    } else if !binary.is_in(config_map) {
        Observed::Unusable("holds something else")
    } else {
        Observed::Delivered
    }
}

/// Plans for one namespace. `observed` is `None` where the namespace wants no `ConfigMap`.
pub(super) fn plan(labels: &Map, name: &str, observed: Option<&Observed>) -> Plan {
    let value = label_value();
    let label = labels.get(SHIM_DELIVERY_LABEL).map(String::as_str);
    let unlabel = || if matches!(label, None | Some(SHIM_DELIVERY_COPY)) { vec![] } else { vec![Step::Unlabel] };
    let set_label = || if label == Some(&value) { vec![] } else { vec![Step::Label(value.clone())] };
    match observed {
        None => Plan { steps: unlabel(), notices: vec![] },
        Some(Observed::Unguarded(reason)) => refused(unlabel(), "DeliveryRefused", refusal(reason)),
        Some(Observed::Unusable(reason)) => {
            let text = format!("ConfigMap {name} {reason} and is left as it is; pods get the shim by copy; delete it");
            refused(unlabel(), "ConfigMapNotOurs", text)
        }
        Some(Observed::Missing) => Plan { steps: [vec![Step::Create], set_label()].concat(), notices: vec![] },
        Some(Observed::Delivered) => Plan { steps: set_label(), notices: vec![] },
    }
}

fn refused(steps: Vec<Step>, reason: &'static str, text: String) -> Plan {
    Plan { steps, notices: vec![Notice::warning(reason, text)] }
}

/// Why nothing is delivered, in one line.
pub(super) fn refusal(reason: &str) -> String {
    format!(
        "no ConfigMap of the shim is delivered, because anybody could write {SHIM_CONFIG_MAP_PREFIX}*: {reason}; \
         next: apply deploy/components/config-map-delivery"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NAME: &str = "istio-aux-shim-0123456789";

    fn labels(injection: Option<&str>, delivery: Option<&str>) -> Map {
        let pairs = [(INJECTION_LABEL, injection), (SHIM_DELIVERY_LABEL, delivery)];
        pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
    }

    /// A plan in words.
    fn lines(plan: &Plan) -> Vec<String> {
        let steps = plan.steps.iter().map(|step| match step {
            Step::Create => "create".to_owned(),
            Step::Label(value) => format!("label {value}"),
            Step::Unlabel => "unlabel".to_owned(),
        });
        steps.chain(plan.notices.iter().map(|notice| notice.reason.to_owned())).collect()
    }

    #[test]
    fn the_label_is_there_only_while_the_config_map_of_this_version_is() {
        const OWN: &str = concat!("config-map-", env!("CARGO_PKG_VERSION"));
        const SET: &str = concat!("label config-map-", env!("CARGO_PKG_VERSION"));
        let (yes, own, old) = (Some("enabled"), Some(OWN), Some("config-map-0.0.1"));
        let unguarded = Observed::Unguarded("there is no policy".to_owned());
        let foreign = Observed::Unusable("is somebody else's");
        let (missing, delivered) = (Observed::Missing, Observed::Delivered);
        let cases: [(&str, Map, &Observed, &[&str]); 19] = [
            ("opts in", labels(yes, None), &missing, &["create", SET]),
            ("settled", labels(yes, own), &delivered, &[]),
            ("the label was lost", labels(yes, None), &delivered, &[SET]),
            ("an unknown value", labels(yes, Some("enabled")), &delivered, &[SET]),
            ("updated", labels(yes, old), &missing, &["create", SET]),
            ("updated and delivered before", labels(yes, old), &delivered, &[SET]),
            ("the same version was built anew", labels(yes, own), &missing, &["create"]),
            ("somebody's, first", labels(yes, None), &foreign, &["ConfigMapNotOurs"]),
            ("somebody's, later", labels(yes, own), &foreign, &["unlabel", "ConfigMapNotOurs"]),
            ("somebody's, updated", labels(yes, old), &foreign, &["unlabel", "ConfigMapNotOurs"]),
            ("no policy", labels(yes, None), &unguarded, &["DeliveryRefused"]),
            ("the policy went", labels(yes, own), &unguarded, &["unlabel", "DeliveryRefused"]),
            ("never opted in", labels(None, None), &missing, &[]),
            ("opted out", labels(None, own), &delivered, &["unlabel"]),
            ("opted out by value", labels(Some("disabled"), own), &delivered, &["unlabel"]),
            ("opted out under another version", labels(None, old), &delivered, &["unlabel"]),
            ("an administrator wants the copy", labels(yes, Some("copy")), &delivered, &[]),
            ("the copy, and no policy", labels(yes, Some("copy")), &unguarded, &[]),
            ("the copy, and opted out", labels(None, Some("copy")), &missing, &[]),
        ];
        for (name, labels, observed, expected) in cases {
            let observed = wants_config_map(&labels).then_some(observed);
            assert_eq!(lines(&plan(&labels, NAME, observed)), expected, "{name}");
        }
    }

    #[test]
    fn no_pod_is_told_of_a_config_map_that_is_not_there() {
        let own = label_value();
        for delivery in [None, Some("copy"), Some("config-map-0.0.1"), Some(own.as_str())] {
            for observed in
                [Observed::Missing, Observed::Unguarded(String::new()), Observed::Unusable(""), Observed::Delivered]
            {
                let labels = labels(Some("enabled"), delivery);
                let steps = plan(&labels, NAME, wants_config_map(&labels).then_some(&observed)).steps;
                let is_created = steps.first() == Some(&Step::Create);
                let is_labelled = steps.iter().any(|step| matches!(step, Step::Label(_)));
                let is_there = observed == Observed::Delivered || is_created;
                assert!(!is_labelled || is_there, "{delivery:?} {observed:?}: {steps:?}");
            }
        }
    }

    #[test]
    fn only_an_immutable_config_map_of_ours_with_the_same_bytes_is_mounted() {
        let binary = ShimBinary::of(b"\x7fELF");
        let changed = |pointer: &str, value: Value| {
            let mut config_map = binary.config_map();
            *config_map.pointer_mut(pointer).unwrap() = value;
            judge(&binary, &config_map)
        };
        assert_eq!(judge(&binary, &binary.config_map()), Observed::Delivered);
        assert_eq!(changed("/metadata/labels", json!({})), Observed::Unusable("is somebody else's"));
        assert_eq!(changed("/immutable", json!(false)), Observed::Unusable("can be changed"));
        assert_eq!(changed("/binaryData/aux-shim", json!("f0VMRgo=")), Observed::Unusable("holds something else"));
    }
}
