//! `istio-aux support-bundle`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;

use super::CliResult;
use super::cluster::ClusterArgs;
use super::output::OutputArgs;
use super::shim::default_settings;
use crate::check::Scope;
use crate::support_bundle::{Request, collect};

/// Collect findings, versions, configuration, statuses and logs into a directory
#[derive(Debug, Args)]
#[command(
    long_about = "Collect findings, versions, configuration, statuses and logs into a directory.

Of the webhook's namespace: its objects, without the values of variables, and its logs. Of pods with the shim: what a
decision depends on, their statuses and the shim's logs. Secrets are not read. Logs may have names of your workloads: look
before you share. Exit status: 0 collected, 1 it failed, 2 wrong arguments.",
    after_help = "examples:
  istio-aux support-bundle
  istio-aux support-bundle -n team -l job-name=hello --directory bundle"
)]
pub(super) struct SupportBundleArgs {
    /// The directory to make; without it, istio-aux-support-TIME
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// The namespace of the webhook
    #[arg(long, value_name = "NAME", default_value = "istio-aux")]
    webhook_namespace: String,
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Only pods with these labels, whether they have the shim or not
    #[arg(short = 'l', long, value_name = "LABELS", default_value = "", hide_default_value = true)]
    selector: String,
    /// How many lines of each log, from its end
    #[arg(long, value_name = "LINES", default_value_t = 2000)]
    tail: u32,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: SupportBundleArgs) -> CliResult {
    let SupportBundleArgs { directory, webhook_namespace, namespace, selector, tail, output, cluster } = arguments;
    cluster.run(async |client| {
        let request = Request {
            directory: directory.unwrap_or_else(default_directory),
            webhook_namespace,
            tail: tail.into(),
            scope: Scope { namespace, selector, probe_in: None, settings: default_settings() },
        };
        eprintln!("istio-aux: collecting into {}", request.directory.display());
        let bundle = collect(&client, request).await?;
        for reason in &bundle.unreadable {
            eprintln!("istio-aux: {reason}");
        }
        let text = format!("{} has {} files\n", bundle.directory.display(), bundle.files.len());
        output.print(&bundle, &text)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn default_directory() -> PathBuf {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
    PathBuf::from(format!("istio-aux-support-{time}"))
}
