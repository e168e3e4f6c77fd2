//! How commands print their results.

use std::io::{self, ErrorKind, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// How to print the result
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub(super) output: Output,
}

impl OutputArgs {
    /// Prints a result: as JSON, or as lines of text.
    pub(super) fn print(&self, result: &impl Serialize, text: &str) -> Result<(), String> {
        match self.output {
            Output::Text => print(text),
            Output::Json => {
                let json = serde_json::to_string_pretty(result).map_err(|error| format!("cannot write: {error}"))?;
                print(&format!("{json}\n"))
            }
        }
    }
}

/// Prints a text. A reader that has read enough, such as `head`, is no error.
pub(super) fn print(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write: {error}")),
        _ => Ok(()),
    }
}
