//! Clients' text in a line of the log, a response or an event.

/// The characters that are kept: the longest valid name has as many.
const LIMIT: usize = 253;

/// Truncates a client's text, which is not validated.
pub(crate) fn shortened(text: &str) -> &str {
    text.char_indices().nth(LIMIT).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_long_as_a_valid_name() {
        assert_eq!(shortened("train-0"), "train-0");
        assert_eq!(shortened(&"ä".repeat(1_000)).chars().count(), LIMIT);
    }
}
