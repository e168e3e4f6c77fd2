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

/// The text is not a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsePolicyError;

impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("takes Always, Never or OnFailure")
    }
}

impl std::error::Error for ParsePolicyError {}
