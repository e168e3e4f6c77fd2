//! Errors with their sources, in one line.

/// Returns the error's message and those of its sources in one line. A message that its error repeats is left out.
#[must_use]
pub fn display_chain(error: &dyn std::error::Error) -> String {
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
    use super::display_chain;

    use std::error::Error;
    use std::fmt;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|layer| layer as _)
        }
    }

    #[test]
    fn repeated_message_is_printed_once() {
        let cause = Layer("client error", Some(Box::new(Layer("refused", None))));
        let error = Layer("cannot connect: client error", Some(Box::new(cause)));
        assert_eq!(display_chain(&error), "cannot connect: client error: refused");
    }
}
