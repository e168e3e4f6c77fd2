//! The command line: arguments, the log, exit statuses (0 well, 1 it failed, 2 arguments that make no sense).

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use contract::names::{PILOT_AGENT, SHIM_IMAGE};
use tracing_subscriber::filter::LevelFilter;

use crate::causes::with_causes;
use crate::inject::{Delivery, PullPolicy, Settings};
use crate::serve::{self, Options};

#[derive(Debug, Parser)]
#[command(name = "istio-aux", version, about = "Lets pods with an Istio sidecar start after their proxy, and complete")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Serve),
}

/// Run the webhook
#[derive(Debug, Args)]
#[command(after_help = "example: istio-aux serve --tls-cert /tls/tls.crt --tls-key /tls/tls.key")]
struct Serve {
    /// The server's certificate and its chain, in PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: PathBuf,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE")]
    tls_key: PathBuf,
    /// Where admission reviews are served, over TLS
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Where /healthz and /readyz are served, in plain HTTP
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8080")]
    health_listen: SocketAddr,
    /// The shim's image
    #[arg(long, value_name = "IMAGE", default_value_t = format!("{SHIM_IMAGE}:{}", env!("CARGO_PKG_VERSION")))]
    shim_image: String,
    /// When nodes pull that image; Always where the server runs its plug-in `AlwaysPullImages`
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent", value_parser = pull_policy)]
    shim_pull_policy: PullPolicy,
    /// How the shim gets into containers that are not its own: an init container copies it, or its image is a volume
    /// (Kubernetes 1.35 with containerd 2.1 or CRI-O, and later, on every node)
    #[arg(long, value_enum, default_value_t = DeliveryChoice::Copy)]
    delivery: DeliveryChoice,
    /// Whether the server has native sidecars (Kubernetes 1.29 and later): without, the shim is istio-proxy's parent
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_or_off)]
    native_sidecars: bool,
    /// What istio-proxy runs where its container has no command
    #[arg(long, value_name = "PATH", default_value = PILOT_AGENT)]
    proxy_command: String,
    /// What to log: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
}

/// A [`Delivery`] by its name.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum DeliveryChoice {
    Copy,
    ImageVolume,
}

fn pull_policy(text: &str) -> Result<PullPolicy, String> {
    let all = [PullPolicy::IfNotPresent, PullPolicy::Always, PullPolicy::Never];
    all.into_iter()
        .find(|policy| policy.as_str() == text)
        .ok_or_else(|| "takes IfNotPresent, Always or Never".to_owned())
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("takes on or off".to_owned()),
    }
}

/// Runs a command line, its first word being the program's name, to its exit status.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Serve(arguments) }) => serve(arguments),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("istio-aux: {}", one_line(&error));
            ExitCode::from(2)
        }
    }
}

fn serve(arguments: Serve) -> ExitCode {
    tracing_subscriber::fmt().with_max_level(arguments.log_level).with_writer(std::io::stderr).with_ansi(false).init();
    let options = Options {
        listen: arguments.listen,
        health_listen: arguments.health_listen,
        tls_cert: arguments.tls_cert,
        tls_key: arguments.tls_key,
        settings: Settings {
            shim_image: arguments.shim_image,
            pull_policy: arguments.shim_pull_policy,
            delivery: match arguments.delivery {
                DeliveryChoice::Copy => Delivery::Copy,
                DeliveryChoice::ImageVolume => Delivery::ImageVolume,
            },
            native_sidecars: arguments.native_sidecars,
            proxy_command: arguments.proxy_command,
        },
    };
    match serve::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("istio-aux: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// What clap says of wrong arguments in its first paragraph, in one line.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command: try istio-aux serve --tls-cert FILE --tls-key FILE, or --help".to_owned();
    }
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect();
    format!("{}; see --help", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn refusal(line: &str) -> String {
        one_line(&Cli::try_parse_from(line.split_whitespace()).unwrap_err())
    }

    #[test]
    fn wrong_arguments_are_named_in_one_line() {
        let cases = [
            ("istio-aux", "no command: try istio-aux serve --tls-cert FILE --tls-key FILE, or --help"),
            ("istio-aux sever", "unrecognized subcommand 'sever'; see --help"),
            (
                "istio-aux serve",
                "the following required arguments were not provided: --tls-cert <FILE> --tls-key <FILE>; see --help",
            ),
            (
                "istio-aux serve --tls-cert a --tls-key b --listen here",
                "invalid value 'here' for '--listen <ADDRESS:PORT>': invalid socket address syntax; see --help",
            ),
            ("istio-aux serve --no-such", "unexpected argument '--no-such' found; see --help"),
        ];
        for (line, message) in cases {
            assert_eq!(refusal(line), message, "{line}");
        }
    }

    #[test]
    fn definitions_are_sound() {
        Cli::command().debug_assert();
    }
}
