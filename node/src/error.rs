//! The error of the agent's work. It is logged, printed, or sent to the plugin; no caller matches on it.

use std::fmt::{self, Display};

use contract::error_chain::display_chain;

/// Says what failed and, after colons, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

/// Is what the agent's work returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error without a cause.
    #[must_use]
    pub fn new(message: impl Display) -> Self {
        Self(message.to_string())
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Error {
    /// Appends the causes that the error's own text does not have.
    fn from(error: E) -> Self {
        Self::new(display_chain(&error))
    }
}

/// Puts what was to be done before an error.
pub trait Context<T> {
    /// Returns the value, or an error that begins with `context`.
    fn context(self, context: impl Display) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, context: impl Display) -> Result<T> {
        self.map_err(|error| {
            let error: Error = error.into();
            Error::new(format_args!("{context}: {error}"))
        })
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, context: impl Display) -> Result<T> {
        self.ok_or_else(|| Error::new(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the call")]
    struct Failed(#[source] std::io::Error);

    #[test]
    fn context_stands_before_error() {
        let outer: Result<()> = Err(Failed(std::io::Error::other("refused"))).context("istiod");
        assert_eq!(outer.unwrap_err().to_string(), "istiod: the call: refused");
        assert_eq!(None::<()>.context("no pod").unwrap_err().to_string(), "no pod");
    }
}
