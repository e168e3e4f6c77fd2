//! Whether the two admission policies are in force without which no `ConfigMap` is delivered. Pure.
//!
//! Who writes the `ConfigMap` of a namespace says what runs beside the proxies of its pods, so that only the controller may.

use serde_json::Value;

use crate::api::Kind;

/// `ValidatingAdmissionPolicies`.
pub(super) const POLICIES: Kind =
    Kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies");
/// Their bindings.
pub(super) const BINDINGS: Kind =
    Kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
/// The policies' names, and their bindings'.
pub(super) const NAMES: [&str; 2] = ["istio-aux-shim-config-maps", "istio-aux-shim-delivery"];

/// Why a policy is not in force; `None` where it is.
pub(super) fn reason_not_in_force(name: &str, policy: Option<&Value>, binding: Option<&Value>) -> Option<String> {
    let Some(policy) = policy else { return Some(format!("there is no ValidatingAdmissionPolicy {name}")) };
    let Some(binding) = binding else { return Some(format!("there is no ValidatingAdmissionPolicyBinding {name}")) };
    let spec = &binding["spec"];
    let denies = spec["validationActions"].as_array().is_some_and(|actions| actions.iter().any(|it| it == "Deny"));
    let is_whole = spec["matchResources"].as_object().is_none_or(|limits| {
        // The API server fills in selectors that match everything.
        limits
            .iter()
            .all(|(key, limit)| key == "matchPolicy" || limit.as_object().is_some_and(serde_json::Map::is_empty))
    });
    if policy["spec"]["failurePolicy"] == "Ignore" {
        Some(format!("ValidatingAdmissionPolicy {name} has failurePolicy Ignore"))
    } else if spec["policyName"] != name || !denies || !is_whole {
        Some(format!("ValidatingAdmissionPolicyBinding {name} does not deny everywhere what the policy forbids"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_policy_counts_only_where_it_denies_everywhere() {
        let name = NAMES[0];
        let policy = json!({"spec": {"failurePolicy": "Fail"}});
        let binding = json!({"spec": {"policyName": name, "validationActions": ["Deny"]}});
        let changed = |field: &str, value: Value| {
            let mut binding = binding.clone();
            binding["spec"][field] = value;
            binding
        };
        let everywhere = json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}});
        let one = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
        let narrow = Some("ValidatingAdmissionPolicyBinding istio-aux-shim-config-maps does not deny everywhere");
        let ignoring = json!({"spec": {"failurePolicy": "Ignore"}});
        let cases = [
            ("in force", Some(&policy), Some(binding.clone()), None),
            ("with defaults", Some(&policy), Some(changed("matchResources", everywhere)), None),
            ("no policy", None, Some(binding.clone()), Some("there is no ValidatingAdmissionPolicy istio")),
            ("no binding", Some(&policy), None, Some("there is no ValidatingAdmissionPolicyBinding istio")),
            (
                "ignores",
                Some(&ignoring),
                Some(binding.clone()),
                Some("ValidatingAdmissionPolicy istio-aux-shim-config"),
            ),
            ("warns", Some(&policy), Some(changed("validationActions", json!(["Warn", "Audit"]))), narrow),
            ("another policy", Some(&policy), Some(changed("policyName", json!("other"))), narrow),
            ("somewhere", Some(&policy), Some(changed("matchResources", one)), narrow),
        ];
        for (case, policy, binding, expected) in cases {
            let reason = reason_not_in_force(name, policy, binding.as_ref());
            match expected {
                None => assert_eq!(reason, None, "{case}"),
                Some(start) => assert!(reason.as_deref().is_some_and(|it| it.starts_with(start)), "{case}: {reason:?}"),
            }
        }
    }
}
