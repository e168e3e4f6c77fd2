//! The command line: arguments, exit statuses (0 well, 1 it failed or something is to be mended, 2 arguments that make no
//! sense). What each command does is elsewhere.

mod cluster;
mod manifests;
#[cfg(test)]
mod reference;
mod serve;
mod shim;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

#[derive(Debug, Parser)]
#[command(
    name = "istio-aux",
    version,
    about = "Lets pods with an Istio sidecar start after their proxy, and complete",
    after_help = "examples:
  istio-aux check                               what is wrong in the cluster, and what to do about it
  istio-aux inject -f job.yaml                  what a Job becomes, without a cluster
  istio-aux finish -n team --all-stuck          end the proxies of pods that wait for nothing else"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Inject(manifests::Inject),
    Policy(manifests::Policy),
    Check(cluster::Check),
    Finish(cluster::Finish),
    Completions(Completions),
}

/// Print a shell's completions
#[derive(Debug, Args)]
#[command(after_help = "example: istio-aux completions bash > /etc/bash_completion.d/istio-aux")]
struct Completions {
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// How a command ended that did what it was told; `Err` is one line for what it could not do.
type Ended = Result<ExitCode, String>;

/// Runs a command line, its first word being the program's name, to its exit status.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let ended = match Cli::try_parse_from(words) {
        Ok(Cli { command }) => run(command),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("istio-aux: {}", one_line(&error));
            return ExitCode::from(2);
        }
    };
    ended.unwrap_or_else(|reason| {
        eprintln!("istio-aux: {reason}");
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> Ended {
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Inject(arguments) => manifests::inject(arguments),
        Command::Policy(arguments) => manifests::policy(arguments),
        Command::Check(arguments) => cluster::check(arguments),
        Command::Finish(arguments) => cluster::finish(arguments),
        Command::Completions(Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "istio-aux", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What clap says of wrong arguments in its first paragraph, in one line.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command: it takes serve, inject, check, finish or completions; see --help".to_owned();
    }
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect();
    format!("{}; see --help", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        one_line(&Cli::try_parse_from(line.split_whitespace()).unwrap_err())
    }

    #[test]
    fn wrong_arguments_are_named_in_one_line() {
        let cases = [
            ("istio-aux", "no command: it takes serve, inject, check, finish or completions; see --help"),
            ("istio-aux sever", "unrecognized subcommand 'sever'; see --help"),
            (
                "istio-aux serve",
                "the following required arguments were not provided: <--self-signed|--tls-cert <FILE>>; see --help",
            ),
            (
                "istio-aux serve --tls-cert a",
                "the following required arguments were not provided: --tls-key <FILE>; see --help",
            ),
            (
                "istio-aux serve --self-signed --tls-cert a --tls-key b",
                "the argument '--self-signed' cannot be used with '--tls-cert <FILE>'; see --help",
            ),
            (
                "istio-aux serve --tls-cert a --tls-key b --listen here",
                "invalid value 'here' for '--listen <ADDRESS:PORT>': invalid socket address syntax; see --help",
            ),
            (
                "istio-aux serve --self-signed --certificate-validity 30s",
                "invalid value '30s' for '--certificate-validity <DURATION>': takes a minute to ten years, such as 365d; see --help",
            ),
            (
                "istio-aux serve --self-signed --shim-requests cpu=1m,memory=4Megs",
                "invalid value 'memory=4Megs' for '--shim-requests <NAME=QUANTITY>': takes cpu=QUANTITY and memory=QUANTITY, such as memory=4Mi; see --help",
            ),
            ("istio-aux serve --no-such", "unexpected argument '--no-such' found; see --help"),
            ("istio-aux inject", "the following required arguments were not provided: --filename <FILE>; see --help"),
            ("istio-aux finish", "the following required arguments were not provided: <--all-stuck|POD>; see --help"),
            ("istio-aux finish x -A", "the argument '[POD]...' cannot be used with '--all-namespaces'; see --help"),
            (
                "istio-aux check -o yaml",
                "invalid value 'yaml' for '--output <FORMAT>' [possible values: text, json]; see --help",
            ),
        ];
        for (line, message) in cases {
            assert_eq!(refusal(line), message, "{line}");
        }
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("example"), "{}", command.get_name());
        }
    }

    #[test]
    fn definitions_are_sound() {
        Cli::command().debug_assert();
    }
}
