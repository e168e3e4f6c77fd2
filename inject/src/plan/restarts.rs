//! The kubelet's restarts: containers' own restart policies (`restartPolicy` and `restartPolicyRules`, KEP-5307), and
//! containers that it may start again after any exit code.

use contract::policy::{ContainerPolicy, RestartPolicy, RestartRule, RuleAction};

use super::Warnings;
use crate::facts::Facts;
use crate::facts::pod::{Container, RestartPolicyRule};

/// Returns the awaited containers that the kubelet may restart whatever the pod's policy says: after any exit code, because of
/// a probe or a `resizePolicy` (`computePodActions`), or by a policy or rules of their own. Returns all if a rule may restart
/// all.
pub(super) fn may_restart(
    facts: &Facts,
    awaited: &[&Container],
    policy: RestartPolicy,
    warnings: &mut Warnings,
) -> Vec<String> {
    let is_ended_by_kubelet = |it: &Container| it.may_be_ended_by_kubelet() && policy != RestartPolicy::Never;
    let restarts_all = facts.pod.all_containers().any(has_rule_for_all);
    let mut names = Vec::new();
    // A container that is not awaited may have a rule that restarts all.
    for container in &facts.payload {
        if let Err(unknown) = own_policy(container, policy) {
            let name = &container.name;
            warnings.push(format_args!(
                "container {name}: {unknown}, so istio-aux cannot tell when it has ended for good; next: once it has, \
                 `pilot-agent request POST quitquitquit` in istio-proxy"
            ));
        }
    }
    for container in awaited {
        let own = own_policy(container, policy);
        if restarts_all || is_ended_by_kubelet(container) || own != Ok(None) {
            names.push(container.name.clone());
        }
    }
    names
}

/// Returns true if an init container's exit may restart all containers (KEP-5532). Regular containers with such a rule need no check:
/// the kubelet's report waits for their end.
pub(super) fn all_may_restart(facts: &Facts) -> bool {
    facts.pod.spec.init_containers.iter().flatten().any(has_rule_for_all)
}

fn has_rule_for_all(container: &Container) -> bool {
    container.restart_policy_rules.iter().flatten().any(|rule| rule.action == RESTART_ALL)
}

const RESTART_ALL: &str = "RestartAllContainers";

/// A restart policy that a newer Kubernetes may have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownPolicy {
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
pub(crate) fn own_policy(container: &Container, pod: RestartPolicy) -> Result<Option<ContainerPolicy>, UnknownPolicy> {
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
        RESTART_ALL => RuleAction::RestartAllContainers,
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

    fn in_words(policy: &ContainerPolicy) -> String {
        let rules = policy.rules.iter().map(|rule| format!(";{:?} {} {:?}", rule.action, rule.is_in, rule.values));
        format!("{}{}", policy.policy, rules.collect::<String>())
    }

    fn policy_of(mut container: Value) -> Result<Option<String>, UnknownPolicy> {
        container["name"] = json!("main");
        let text = container.to_string();
        let container = serde_json::from_str(&text).unwrap();
        own_policy(&container, RestartPolicy::OnFailure).map(|own| own.map(|policy| in_words(&policy)))
    }

    #[test]
    fn policy_and_rules_of_a_container_are_read() {
        let rule = |action: &str, operator: &str| json!([{"action": action, "exitCodes": {"operator": operator, "values": [42, 43]}}]);
        let cases = [
            (json!({}), Ok(None)),
            (json!({"restartPolicy": null, "restartPolicyRules": []}), Ok(None)),
            (json!({"restartPolicy": "Never"}), Ok(Some("Never"))),
            (
                json!({"restartPolicy": "Never", "restartPolicyRules": rule("Restart", "In")}),
                Ok(Some("Never;Restart true [42, 43]")),
            ),
            (
                json!({"restartPolicyRules": rule("RestartAllContainers", "NotIn")}),
                Ok(Some("OnFailure;RestartAllContainers false [42, 43]")),
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
