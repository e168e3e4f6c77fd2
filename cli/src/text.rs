//! Makes text from a cluster safe to print.

/// Returns a text in one line, without what a terminal would obey: its control characters become U+FFFD.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
