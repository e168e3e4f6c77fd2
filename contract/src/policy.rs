//! Restart policies: the pod's, and a container's own (`restartPolicy` and `restartPolicyRules`, KEP-5307), as Kubernetes
//! writes them and as the shim's arguments do.

use std::fmt;
use std::str::FromStr;

/// A restart policy, of a pod or of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// An ended container is started again, whatever its exit code.
    Always,
    /// An ended container stays ended, whatever its exit code.
    Never,
    /// A container that ended with any code but 0 is started again.
    OnFailure,
}

impl RestartPolicy {
    /// Returns the name that Kubernetes uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Never => "Never",
            Self::OnFailure => "OnFailure",
        }
    }
}

/// The action of a rule that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// The container is started again.
    Restart,
    /// Every container of the pod is started again, ended or not (KEP-5532).
    RestartAllContainers,
}

/// One of a container's `restartPolicyRules`; the first that matches an exit code comes before any policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartRule {
    /// The action when the rule matches.
    pub action: RuleAction,
    /// Matches exit codes that are among the values, or else those that are not.
    pub is_in: bool,
    /// Exit codes, 0 to 255.
    pub values: Vec<i32>,
}

impl RestartRule {
    /// Returns true if the rule matches this exit code.
    #[must_use]
    pub fn matches(&self, code: i32) -> bool {
        self.values.contains(&code) == self.is_in
    }
}

/// The restart policy of one container: its own rules and policy, or the pod's policy alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// The policy where no rule matches.
    pub policy: RestartPolicy,
    /// The rules, in their order.
    pub rules: Vec<RestartRule>,
}

impl From<RestartPolicy> for ContainerPolicy {
    fn from(policy: RestartPolicy) -> Self {
        Self { policy, rules: Vec::new() }
    }
}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RestartPolicy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyError> {
        let all = [Self::Always, Self::Never, Self::OnFailure];
        all.into_iter().find(|policy| policy.as_str() == text).ok_or(ParsePolicyError)
    }
}

/// `POLICY[;ACTION:in|not-in:CODE[,CODE…]]…`, for example `Never;restart:in:42,43`.
impl fmt::Display for ContainerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        for rule in &self.rules {
            let values: Vec<String> = rule.values.iter().map(i32::to_string).collect();
            let operator = if rule.is_in { "in" } else { "not-in" };
            write!(f, ";{}:{operator}:{}", rule.action.as_word(), values.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for ContainerPolicy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyError> {
        let mut parts = text.split(';');
        let policy = parts.next().unwrap_or_default().parse()?;
        let rules = parts.map(RestartRule::from_word).collect::<Result<_, _>>()?;
        Ok(Self { policy, rules })
    }
}

impl RuleAction {
    fn as_word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::RestartAllContainers => "restart-all",
        }
    }
}

impl RestartRule {
    fn from_word(word: &str) -> Result<Self, ParsePolicyError> {
        let mut parts = word.splitn(3, ':');
        let (action, operator, values) = (parts.next(), parts.next(), parts.next().ok_or(ParsePolicyError)?);
        let actions = [RuleAction::Restart, RuleAction::RestartAllContainers];
        let action = actions.into_iter().find(|known| Some(known.as_word()) == action).ok_or(ParsePolicyError)?;
        let is_in = match operator {
            Some("in") => true,
            Some("not-in") => false,
            _ => return Err(ParsePolicyError),
        };
        let values =
            values.split(',').map(|code| code.parse().map_err(|_| ParsePolicyError)).collect::<Result<_, _>>()?;
        Ok(Self { action, is_in, values })
    }
}

/// The text is not a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsePolicyError;

impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("takes Always, Never or OnFailure, and rules like ;restart:in:42,43")
    }
}

impl std::error::Error for ParsePolicyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_parses_as_it_is_written() {
        let codes = |action, is_in, values: &[i32]| RestartRule { action, is_in, values: values.to_vec() };
        let cases = [
            ("Never", RestartPolicy::Never, vec![]),
            ("Always", RestartPolicy::Always, vec![]),
            ("Never;restart:in:42,43", RestartPolicy::Never, vec![codes(RuleAction::Restart, true, &[42, 43])]),
            (
                "OnFailure;restart-all:not-in:0;restart:in:1",
                RestartPolicy::OnFailure,
                vec![codes(RuleAction::RestartAllContainers, false, &[0]), codes(RuleAction::Restart, true, &[1])],
            ),
        ];
        for (text, policy, rules) in cases {
            let expected = ContainerPolicy { policy, rules };
            assert_eq!(text.parse::<ContainerPolicy>(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), text);
        }
    }

    #[test]
    fn invalid_policy_is_rejected() {
        for text in
            ["", "never", "Never;", "Never;restart", "Never;restart:in:", "Never;restart:in:x", "Never;stop:in:1"]
        {
            assert_eq!(text.parse::<ContainerPolicy>(), Err(ParsePolicyError), "{text}");
        }
    }
}
