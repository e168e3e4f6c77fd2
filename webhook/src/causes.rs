//! An error in one line, with its causes.

/// The error's message, and those of its causes. A message that its error repeats is left out.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = inner.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::with_causes;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect: {0}")]
    struct Repeats(#[source] Outer);

    #[derive(Debug, thiserror::Error)]
    #[error("client error")]
    struct Outer(#[source] std::fmt::Error);

    #[test]
    fn a_cause_that_its_error_repeats_is_printed_once() {
        let cause = std::fmt::Error.to_string();
        assert_eq!(with_causes(&Repeats(Outer(std::fmt::Error))), format!("cannot connect: client error: {cause}"));
    }
}
