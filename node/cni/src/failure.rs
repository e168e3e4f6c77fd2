//! The errors that the plugin prints for the container runtime.

use std::fmt;

use serde_json::json;

/// Holds the reason of a call that failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The runtime's input cannot be used.
    Input(String),
    /// The agent did not respond in time.
    Unavailable(String),
    /// STATUS: pods cannot be added.
    NotAvailable(String),
    /// The agent responded with a reason.
    Rejected(String),
}

impl Failure {
    /// Renders the error as the specification has it: code 11 means "try again later", 50 "the plugin is not available"; those of
    /// plugins begin at 100.
    #[must_use]
    pub fn to_json(&self) -> String {
        let code = match self {
            Self::Unavailable(_) => 11,
            Self::NotAvailable(_) => 50,
            Self::Input(_) => 100,
            Self::Rejected(_) => 101,
        };
        json!({"cniVersion": "1.0.0", "code": code, "msg": format!("istio-aux: {self}")}).to_string()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (Self::Input(message) | Self::Unavailable(message) | Self::NotAvailable(message) | Self::Rejected(message)) =
            self;
        f.write_str(message)
    }
}
