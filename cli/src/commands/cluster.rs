//! Options of every command that talks to a cluster.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use kube::Client;

use super::CliResult;
use crate::connection::Connection;

/// The heading of these options in a help text.
pub(super) const CLUSTER_HEADING: &str = "Cluster";

#[derive(Debug, Args)]
#[command(next_help_heading = CLUSTER_HEADING)]
pub(super) struct ClusterArgs {
    /// The kubeconfig file; without it, KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; without it, the current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The user to impersonate
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// A group to impersonate; repeatable
    #[arg(long = "as-group", value_name = "GROUP", requires = "user")]
    groups: Vec<String>,
    /// How long the API server may take to answer; 0s: for ever
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    request_timeout: Duration,
}

impl ClusterArgs {
    /// Runs a command with a client of the cluster.
    pub(super) fn run(self, command: impl AsyncFnOnce(Client) -> CliResult) -> CliResult {
        let connection = Connection {
            kubeconfig: self.kubeconfig,
            context: self.context,
            user: self.user,
            groups: self.groups,
            request_timeout: Some(self.request_timeout).filter(|timeout| !timeout.is_zero()),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        runtime.block_on(async { command(connection.client().await?).await })
    }
}

/// The namespace of a command: the one that was given, or the context's.
pub(super) fn namespace_or_default(namespace: Option<String>, client: &Client) -> String {
    namespace.unwrap_or_else(|| client.default_namespace().to_owned())
}

/// 0 where all is well, else 1.
pub(super) fn exit_code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
