//! The kubelet's restarts, for the shim's arguments: containers' own restart policies (`restartPolicy` and
//! `restartPolicyRules`, KEP-5307), and containers that it may restart after any exit code.

use contract::policy::{ContainerPolicy, RestartPolicy, RestartRule, RuleAction};

use super::Warnings;
use crate::facts::Facts;
use crate::facts::pod::{Container, Pod, RestartPolicyRule};

/// Returns the restart policies of the regular containers that have their own, the proxy's too.
pub(super) fn own_policies(
    pod: &Pod,
    policy: RestartPolicy,
    warnings: &mut Warnings,
) -> Vec<(String, ContainerPolicy)> {
    let mut policies = Vec::new();
    for container in &pod.spec.containers {
        let name = container.name.as_str();
        match own_policy(container, policy) {
            Ok(None) => {}
            Ok(Some(own)) => policies.push((name.to_owned(), own)),
            Err(unknown) => {
                warnings.push(format_args!("container {name}: {unknown}; using the pod's restartPolicy"));
            }
        }
    }
    policies
}

/// Returns the regular containers but the proxy that the kubelet may restart after any exit code. It does not restart those
/// whose restart policy is `Never` (`computePodActions`).
pub(super) fn may_restart(facts: &Facts, policy: RestartPolicy) -> Vec<String> {
    let is_never = |container: &Container| {
        let own = container.restart_policy.as_deref();
        own.unwrap_or(policy.as_str()) == RestartPolicy::Never.as_str()
    };
    let restarted =
        facts.payload.iter().filter(|container| container.may_be_ended_by_kubelet() && !is_never(container));
    restarted.map(|container| container.name.as_str().to_owned()).collect()
}

/// A restart policy that a newer Kubernetes may have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UnknownPolicy {
    #[error("unknown restartPolicy {0}")]
    Policy(String),
    #[error("unknown action {0}")]
    Action(String),
    #[error("unknown operator {0}")]
    Operator(String),
    #[error("a rule without exitCodes")]
    NoExitCodes,
}

/// Returns the policy of a container that has its own; the pod's is used where it has rules only.
fn own_policy(container: &Container, pod: RestartPolicy) -> Result<Option<ContainerPolicy>, UnknownPolicy> {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let policy = match &container.restart_policy {
        None if rules.is_empty() => return Ok(None),
        None => pod,
        Some(text) => text.parse().map_err(|_| UnknownPolicy::Policy(text.clone()))?,
    };
    let rules = rules.iter().map(rule).collect::<Result<_, _>>()?;
    Ok(Some(ContainerPolicy { policy, rules }))
}

fn rule(rule: &RestartPolicyRule) -> Result<RestartRule, UnknownPolicy> {
    let action = match rule.action.as_str() {
        "Restart" => RuleAction::Restart,
        "RestartAllContainers" => RuleAction::RestartAllContainers,
        other => return Err(UnknownPolicy::Action(other.to_owned())),
    };
    let codes = rule.exit_codes.as_ref().ok_or(UnknownPolicy::NoExitCodes)?;
    let is_in = match codes.operator.as_str() {
        "In" => true,
        "NotIn" => false,
        other => return Err(UnknownPolicy::Operator(other.to_owned())),
    };
    Ok(RestartRule { action, is_in, values: codes.values.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy_of(mut container: Value) -> Result<Option<String>, UnknownPolicy> {
        container["name"] = json!("main");
        let text = container.to_string();
        let container = serde_json::from_str(&text).unwrap();
        own_policy(&container, RestartPolicy::OnFailure).map(|own| own.map(|policy| policy.to_string()))
    }

    #[test]
    fn container_policy_is_passed_on() {
        let rule = |action: &str, operator: &str| json!([{"action": action, "exitCodes": {"operator": operator, "values": [42, 43]}}]);
        let cases = [
            (json!({}), Ok(None)),
            (json!({"restartPolicy": null, "restartPolicyRules": []}), Ok(None)),
            (json!({"restartPolicy": "Never"}), Ok(Some("Never"))),
            (
                json!({"restartPolicy": "Never", "restartPolicyRules": rule("Restart", "In")}),
                Ok(Some("Never;restart:in:42,43")),
            ),
            (
                json!({"restartPolicyRules": rule("RestartAllContainers", "NotIn")}),
                Ok(Some("OnFailure;restart-all:not-in:42,43")),
            ),
            (json!({"restartPolicy": "Sometimes"}), Err(UnknownPolicy::Policy("Sometimes".to_owned()))),
            (json!({"restartPolicyRules": rule("Stop", "In")}), Err(UnknownPolicy::Action("Stop".to_owned()))),
            (json!({"restartPolicyRules": rule("Restart", "Like")}), Err(UnknownPolicy::Operator("Like".to_owned()))),
            (json!({"restartPolicyRules": [{"action": "Restart"}]}), Err(UnknownPolicy::NoExitCodes)),
        ];
        for (container, expected) in cases {
            let expected = expected.map(|policy: Option<&str>| policy.map(str::to_owned));
            assert_eq!(policy_of(container.clone()), expected, "{container}");
        }
    }
}
