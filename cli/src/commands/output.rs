//! Prints the results of commands.

use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::text::one_line;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
    Yaml,
}

#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// How to print the result
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub(super) output: Output,
}

impl OutputArgs {
    /// Prints a result: as JSON or YAML, or as lines of text.
    pub(super) fn print(&self, result: &impl Serialize, text: &str) -> Result<()> {
        match self.output {
            Output::Text => print(&printable(text)),
            Output::Json => print(&format!("{}\n", serde_json::to_string_pretty(result).context("cannot write")?)),
            Output::Yaml => print(&serde_saphyr::to_string(result).context("cannot write")?),
        }
    }
}

/// Returns lines of text without what a terminal would obey. JSON and YAML escape it.
fn printable(text: &str) -> String {
    text.lines().map(|line| one_line(line) + "\n").collect()
}

/// Prints a text. Ignores a reader that stops reading, such as `head`.
pub(super) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write"),
        _ => Ok(()),
    }
}

/// On a terminal, lists what is about to change, and asks whether to go on. Without one, returns true.
pub(super) fn agrees(lines: impl IntoIterator<Item = String>, question: &str) -> bool {
    if !io::stdin().is_terminal() {
        return true;
    }
    for line in lines {
        eprintln!("{line}");
    }
    confirm(question, &mut io::stdin().lock())
}

/// Asks on standard error, where it does not get into a pipe, and reads whether to go on.
fn confirm(question: &str, answer: &mut impl BufRead) -> bool {
    eprint!("{question} [y/N] ");
    let mut line = String::new();
    answer.read_line(&mut line).is_ok() && matches!(line.trim(), "y" | "Y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::{confirm, printable};

    #[test]
    fn text_has_no_control_character_but_ends_of_lines() {
        assert_eq!(printable("a\u{1b}[2J\r\nb\n"), "a\u{fffd}[2J\nb\n");
        assert_eq!(printable(""), "");
    }

    #[test]
    fn only_yes_agrees() {
        for (answer, expected) in [("y\n", true), ("yes\n", true), ("\n", false), ("n\n", false), ("", false)] {
            assert_eq!(confirm("", &mut answer.as_bytes()), expected, "{answer:?}");
        }
    }
}
