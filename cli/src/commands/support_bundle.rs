//! Runs `istio-aux support-bundle`.

use anyhow::Context;
use clap::Args;

use super::CliResult;
use super::cluster::ClusterArgs;
use super::output::OutputArgs;
use crate::support_bundle::gather;

/// Print what a bug report needs
#[derive(Debug, Args)]
#[command(
    long_about = "Print what a bug report needs.

Versions, the findings of check, the webhook configurations, pods and logs of istio-aux and, with -n, of a namespace: its
pods with their status, the logs of their shims, and its events. No Secret is read, and of pods neither variables nor
commands, volumes or others' annotations are printed; events are, as Kubernetes has written them. Read it before you send
it. Exit status: 0 printed, 1 no cluster, 2 wrong arguments.",
    after_help = "examples:
  istio-aux support-bundle > bundle.yaml
  istio-aux support-bundle -n team > bundle.yaml"
)]
pub(super) struct SupportBundleArgs {
    /// A namespace whose pods make trouble
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: SupportBundleArgs) -> CliResult {
    let SupportBundleArgs { namespace, output, cluster } = arguments;
    cluster.run(async |client| {
        let bundle = gather(&client, namespace.as_deref()).await?;
        // A person reads YAML.
        output.print(&bundle, &serde_saphyr::to_string(&bundle).context("cannot write")?)?;
        Ok(true)
    })
}
