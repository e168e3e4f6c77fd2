//! Sets up the log of programs that run until they are stopped.

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Holds the options of the log.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Log this level and above: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
    /// Log in this format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

impl LogArgs {
    /// Starts to log to stderr.
    pub fn start(&self) {
        let log =
            tracing_subscriber::fmt().with_max_level(self.log_level).with_writer(std::io::stderr).with_ansi(false);
        match self.log_format {
            LogFormat::Text => log.init(),
            LogFormat::Json => log.json().flatten_event(true).init(),
        }
    }
}
