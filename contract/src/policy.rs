//! When the kubelet starts an ended container again.

use std::fmt;
use std::str::FromStr;

/// Restart policy of a pod that may complete (`spec.restartPolicy`). `Always` is not here: such a pod never completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// An ended container stays ended, whatever its exit code.
    Never,
    /// A container that ended with any code but 0 is started again.
    OnFailure,
}

impl RestartPolicy {
    /// The name Kubernetes uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "Never",
            Self::OnFailure => "OnFailure",
        }
    }
}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RestartPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        [Self::Never, Self::OnFailure].into_iter().find(|policy| policy.as_str() == text).ok_or(UnknownPolicy)
    }
}

/// The text is neither `Never` nor `OnFailure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("takes Never or OnFailure")
    }
}

impl std::error::Error for UnknownPolicy {}
