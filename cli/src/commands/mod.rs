//! Parses arguments, and returns exit statuses: 0 success, 1 failure or a problem found, 2 wrong arguments. Other modules
//! do the work of the commands.

mod check;
mod cluster;
mod explain;
mod finish;
mod inject;
mod manifests;
mod output;
mod proxies;
mod support_bundle;
mod tenant_objects;
mod uninstall;
mod version;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

/// Is the file name under which kubectl finds the program as its plugin.
const PLUGIN_FILE: &str = "kubectl-istio_aux";

#[derive(Debug, Parser)]
#[command(
    name = "istio-aux",
    version,
    about = "Lets pods with an Istio sidecar start after their proxy, and complete",
    after_help = "examples:
  istio-aux check                               what is wrong in the cluster, and what to do about it
  istio-aux check -n team job/hello             why a workload is injected, or not
  istio-aux inject -f job.yaml                  what a Job becomes, without a cluster
  istio-aux finish -n team --all-stuck          end the proxies of pods that wait for nothing else

As kubectl-istio_aux in PATH it is a plugin: kubectl istio-aux check"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::CheckArgs),
    Finish(finish::FinishArgs),
    Proxies(proxies::ProxiesArgs),
    Inject(inject::InjectArgs),
    Manifests(manifests::ManifestsArgs),
    Policy(manifests::PolicyArgs),
    SupportBundle(support_bundle::SupportBundleArgs),
    Uninstall(uninstall::UninstallArgs),
    Version(version::VersionArgs),
    TenantObjects(tenant_objects::TenantObjectsArgs),
    Completions(Completions),
}

/// Print a shell's completions
#[derive(Debug, Args)]
#[command(after_help = "example: istio-aux completions bash > /etc/bash_completion.d/istio-aux")]
struct Completions {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Tells if all is well; false is exit status 1.
type CliResult = anyhow::Result<bool>;

/// Returns the definition of the command line, from which documentation is generated.
#[must_use]
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs a command line, whose first word is the program's name.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = match parse(words.into_iter().collect()) {
        Ok(Cli { command }) => run(command),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            output::print(&error.to_string()).map(|()| true)
        }
        Err(error) => {
            eprintln!("istio-aux: {}", one_line(&error));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("istio-aux: {}", api::describe_error(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Parses a command line. Messages have the name by which the program was called.
fn parse(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let file = words.first().and_then(|program| Path::new(program).file_stem());
    let is_plugin = file == Some(OsStr::new(PLUGIN_FILE));
    let command = Cli::command();
    let command = if is_plugin { command.bin_name("kubectl istio-aux") } else { command };
    Cli::from_arg_matches(&command.try_get_matches_from(words)?)
}

fn run(command: Command) -> CliResult {
    match command {
        Command::Check(arguments) => check::run(arguments),
        Command::Finish(arguments) => finish::run(arguments),
        Command::Proxies(arguments) => proxies::run(arguments),
        Command::Inject(arguments) => inject::inject(arguments),
        Command::Manifests(arguments) => manifests::manifests(&arguments),
        Command::Policy(arguments) => manifests::policy(arguments),
        Command::SupportBundle(arguments) => support_bundle::run(arguments),
        Command::Uninstall(arguments) => uninstall::run(arguments),
        Command::Version(arguments) => version::run(arguments),
        Command::TenantObjects(arguments) => tenant_objects::run(&arguments),
        Command::Completions(Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "istio-aux", &mut std::io::stdout());
            Ok(true)
        }
    }
}

/// Returns clap's message for wrong arguments in one line, with the commands where none was given.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("no command: it takes {}; see --help", command_names());
    }
    ::inject::args::one_line(error)
}

/// Lists the commands, as `check, why or finish`.
fn command_names() -> String {
    let command = Cli::command();
    let names: Vec<&str> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
    let (last, first) = names.split_last().expect("there are commands");
    format!("{} or {last}", first.join(", "))
}

#[cfg(test)]
mod tests;
