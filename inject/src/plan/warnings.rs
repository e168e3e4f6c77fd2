//! Warnings for the client that creates a pod. Their number and length are bounded, because parts of them come from the pod.

use std::fmt::Write;

/// The API server truncates longer warnings.
const WARNING_LENGTH_LIMIT: usize = 256;
/// The API server drops what is beyond 4,096 characters in all.
const WARNING_COUNT_LIMIT: usize = 8;

/// At most [`WARNING_COUNT_LIMIT`] warnings of at most [`WARNING_LENGTH_LIMIT`] characters, and one that counts the others.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    kept: Vec<String>,
    omitted: usize,
}

impl Warnings {
    /// Adds a warning. It is only formatted where it is kept.
    pub(crate) fn push(&mut self, warning: std::fmt::Arguments) {
        if self.kept.len() == WARNING_COUNT_LIMIT {
            self.omitted += 1;
            return;
        }
        let mut text = Truncated { text: String::new(), chars_left: WARNING_LENGTH_LIMIT - 1 };
        let is_cut = text.write_fmt(warning).is_err();
        self.kept.push(text.text + if is_cut { "…" } else { "" });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn into_vec(mut self) -> Vec<String> {
        if self.omitted > 0 {
            self.kept.push(format!("and {} more warnings of istio-aux", self.omitted));
        }
        self.kept
    }

    pub(crate) fn to_vec(&self) -> Vec<String> {
        Self { kept: self.kept.clone(), omitted: self.omitted }.into_vec()
    }
}

/// Text of a bounded length. Writing more than that fails, which also stops the formatting.
struct Truncated {
    text: String,
    chars_left: usize,
}

impl Write for Truncated {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = text.char_indices().nth(self.chars_left).map_or(text.len(), |(place, _)| place);
        self.text.push_str(&text[..end]);
        self.chars_left = self.chars_left.saturating_sub(text[..end].chars().count());
        if end < text.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

/// Names, separated by commas, without building the whole list.
pub(crate) struct Names<'a, 'n>(pub(crate) &'a [&'n str]);

impl std::fmt::Display for Names<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.0
            .iter()
            .enumerate()
            .try_for_each(|(place, name)| write!(f, "{}{name}", if place == 0 { "" } else { ", " }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_bounded_in_number_and_length() {
        let mut warnings = Warnings::default();
        let names = vec!["ä"; 30_000];
        for _ in 0..30_000 {
            warnings.push(format_args!("no such containers: {}", Names(&names)));
        }
        let warnings = warnings.into_vec();
        assert_eq!(warnings.len(), WARNING_COUNT_LIMIT + 1);
        assert_eq!(warnings[0].chars().count(), WARNING_LENGTH_LIMIT);
        assert!(warnings[0].starts_with("no such containers: ä, ä") && warnings[0].ends_with('…'), "{}", warnings[0]);
        assert_eq!(warnings[WARNING_COUNT_LIMIT], "and 29992 more warnings of istio-aux");
    }

    #[test]
    fn short_warning_is_kept_whole() {
        let mut warnings = Warnings::default();
        warnings.push(format_args!("{}", "x".repeat(WARNING_LENGTH_LIMIT - 1)));
        assert_eq!(warnings.to_vec(), ["x".repeat(WARNING_LENGTH_LIMIT - 1)]);
    }
}
