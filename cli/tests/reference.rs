//! Generates `docs/configuration.md` from the definitions of options and metrics, and compares the two.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use controller::ControllerArgs;
use controller::metrics::TenancyMetrics;
use inject::Entry;
use inject::review::Outcome;
use webhook::WebhookArgs;
use webhook::metrics::Metrics;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
/// Heads the options that every command with a cluster has.
const CLUSTER_HEADING: &str = "Cluster";
/// Heads those of all programs that decide about pods.
const SHIM_HEADING: &str = "The shim in pods";
const UPDATE: &str = "UPDATE_DOCS=1 cargo test -p cli --test reference";

fn reference() -> String {
    let mut text = format!(
        "# Configuration\n\nGenerated from the code: `{UPDATE}` writes this file\nagain. Labels and annotations of namespaces and pods are in [reference.md](reference.md).\n"
    );
    let mut cli = istio_aux::commands::definition();
    cli.build();
    shared_options(&mut text, &cli);
    for command in cli.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set()) {
        options(&mut text, "istio-aux ", command);
    }
    for mut program in [WebhookArgs::command(), ControllerArgs::command()] {
        program.build();
        options(&mut text, "", &program);
    }
    metrics(&mut text);
    text
}

/// Writes the options that several commands have, once.
fn shared_options(text: &mut String, cli: &Command) {
    let check = cli.find_subcommand("check").expect("there is a command check");
    text.push_str("\n## Options of every command that talks to a cluster\n\n");
    text.push_str(
        "As `kubectl-istio_aux` in `PATH`, the program is a plugin of kubectl:\n`kubectl istio-aux check`.\n\n",
    );
    table(text, check.get_arguments().filter(|argument| argument.get_help_heading() == Some(CLUSTER_HEADING)));
    text.push_str("\n## Options of the shim in pods\n\n");
    text.push_str(
        "Those of `istio-aux-webhook`, of `istio-aux inject`, and of `istio-aux policy`, which must have\n`--shim-image`. Without any of them `istio-aux check` takes the settings of the webhook in the\ncluster.\n\n",
    );
    table(text, check.get_arguments().filter(|argument| argument.get_help_heading() == Some(SHIM_HEADING)));
}

/// Returns true if the table of its command has this option.
fn is_listed(argument: &Arg) -> bool {
    let is_shared = [CLUSTER_HEADING, SHIM_HEADING].map(Some).contains(&argument.get_help_heading());
    !is_shared && !["help", "version"].contains(&argument.get_id().as_str())
}

fn options(text: &mut String, parent: &str, command: &Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "\n## {parent}{}\n\n{about}.\n\n", command.get_name());
    if command.get_arguments().any(|argument| argument.get_help_heading() == Some(SHIM_HEADING)) {
        text.push_str("Besides those of the [shim in pods](#options-of-the-shim-in-pods):\n\n");
    }
    table(text, command.get_arguments().filter(|argument| is_listed(argument)));
}

fn table<'a>(text: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    text.push_str("| option | default | what |\n| --- | --- | --- |\n");
    for argument in arguments {
        let help = argument.get_help().map(|help| help.to_string().replace('\n', " ")).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | {} | {help}{} |", spelled(argument), default(argument), choices(argument));
    }
}

/// Returns the values that an argument takes, where they are listed.
fn choices(argument: &Arg) -> String {
    let values = argument.get_possible_values();
    let values: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if values.is_empty() || is_flag(argument) { String::new() } else { format!("; {}", values.join(", ")) }
}

fn is_flag(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|number| !number.takes_values())
}

/// Returns `-n, --name VALUE`, or the value alone if the argument has no name.
fn spelled(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default().join(" ");
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let name = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    let parts = [name, if is_flag(argument) { String::new() } else { values }];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn default(argument: &Arg) -> String {
    let values: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if values.concat().is_empty() || is_flag(argument) { "–".to_owned() } else { format!("`{}`", values.join(",")) }
}

fn metrics(text: &mut String) {
    let metrics = Metrics::new();
    metrics.review(Entry::Injection, Outcome::Refused, std::time::Duration::ZERO);
    text.push_str("\n## Metrics\n\nAt `/metrics` of `--health-listen`, in OpenMetrics' format.\n\n| metric | kind | what |\n| --- | --- | --- |\n");
    table_of_metrics(text, &metrics.text());
    text.push_str("\nOf `istio-aux-controller`:\n\n| metric | kind | what |\n| --- | --- | --- |\n");
    table_of_metrics(text, &TenancyMetrics::new().text());
}

fn table_of_metrics(text: &mut String, exposed: &str) {
    let help = exposed.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    for (name, help) in help {
        let kind = exposed.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} "))).unwrap_or_default();
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let _ = writeln!(text, "| `{name}{end}` | {kind} | {} |", help.trim_end_matches('.'));
    }
}

#[test]
fn reference_is_what_the_code_defines() {
    let text = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let written = std::fs::read_to_string(FILE).unwrap_or_default();
    assert_eq!(written, text, "next: {UPDATE}");
}
