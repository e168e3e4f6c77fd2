//! `istio-aux uninstall`.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::CliResult;
use super::cluster::ClusterArgs;
use super::output::OutputArgs;
use crate::installation::{find, uninstall};

/// Remove an installation made by kubectl; without --yes, only list it
#[derive(Debug, Args)]
#[command(
    long_about = "Remove an installation made by kubectl; without --yes, only list it.

Removes objects with the label app.kubernetes.io/name=istio-aux, what calls the webhook first, and waits until they are
gone. Installations by Helm or Juju are left to them. Pods that run keep their shim, and complete. The labels of
namespaces stay. Exit status: 0 removed or listed, 1 it failed, 2 wrong arguments.",
    after_help = "examples:
  istio-aux uninstall
  istio-aux uninstall --yes --delete-namespace"
)]
pub(super) struct UninstallArgs {
    /// The namespace of the webhook
    #[arg(short, long, value_name = "NAME", default_value = "istio-aux")]
    namespace: String,
    /// Remove the objects
    #[arg(short, long)]
    yes: bool,
    /// Remove the namespace too, with everything in it
    #[arg(long)]
    delete_namespace: bool,
    /// How long the removal may take
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: UninstallArgs) -> CliResult {
    let UninstallArgs { namespace, yes, delete_namespace, timeout, output, cluster } = arguments;
    cluster.run(async |client| {
        let found = find(&client, &namespace, delete_namespace).await?;
        if yes {
            uninstall(&client, &found, timeout).await?;
        }
        let verb = if yes { "removed" } else { "would be removed" };
        let mut text = String::new();
        for object in &found {
            let _ = writeln!(text, "{object} {verb}");
        }
        if found.is_empty() {
            text = format!("istio-aux is not installed in namespace {namespace}\n");
        } else if !yes {
            eprintln!("istio-aux: nothing is removed; next: the same command with --yes");
        }
        output.print(&json!({"removed": yes, "objects": found}), &text)?;
        Ok(ExitCode::SUCCESS)
    })
}
