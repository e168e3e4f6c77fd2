//! Runs `istio-aux finish`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use serde_json::json;

use super::CliResult;
use super::cluster::{ClusterArgs, namespace_or_default};
use super::output::{self, Output, OutputArgs};
use crate::finish::{self, Outcome, PodSelection};
use crate::pods::StuckPod;

/// End the proxies of pods that only their proxy keeps running
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
#[command(
    group = ArgGroup::new("which").required(true).args(["all_stuck", "pods"]),
    long_about = "End the proxies of pods that only their proxy keeps running.

For pods that were created before istio-aux was installed. Posts to pilot-agent through a port that the API server
forwards, so it needs get and create on pods/portforward. Pods with a container that still runs, or that the kubelet will
restart, are skipped. On a terminal, it lists the pods of --all-stuck and asks first.
Exit status: 0 all are finished, 1 at least one is not, 2 wrong arguments.",
    after_help = "examples:
  istio-aux finish -n team hello-7jwpb
  istio-aux finish --all-stuck -A --dry-run
  istio-aux finish --all-stuck -n team -l job-name=hello -o json"
)]
pub(super) struct FinishArgs {
    /// The pods
    #[arg(value_name = "POD")]
    pods: Vec<String>,
    /// All stuck pods of the namespace or, with -A, of all namespaces
    #[arg(long)]
    all_stuck: bool,
    /// The namespace; without it, the context's
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "pods"])]
    all_namespaces: bool,
    /// With --all-stuck, only pods with these labels
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pods")]
    selector: Option<String>,
    /// Print which pods would be finished, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask, on a terminal, before the pods of --all-stuck are finished
    #[arg(short, long)]
    yes: bool,
    /// How long a pod may take to end
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: FinishArgs) -> CliResult {
    let FinishArgs { pods, all_stuck, namespace, all_namespaces, selector, dry_run, yes, timeout, output, cluster } =
        arguments;
    let asks = all_stuck && !yes;
    cluster.run(async |client| {
        let namespace = namespace_or_default(namespace, &client);
        let place = if all_namespaces { "any namespace".to_owned() } else { format!("namespace {namespace}") };
        let selection = if all_stuck {
            let selector = selector.unwrap_or_default();
            PodSelection::AllStuck { namespace: (!all_namespaces).then_some(namespace), selector }
        } else {
            // As kubectl prints them.
            let names = pods.iter().map(|name| name.strip_prefix("pod/").unwrap_or(name).to_owned()).collect();
            PodSelection::Named { namespace, names }
        };
        let mut outcomes = Vec::new();
        let report = |outcome: Outcome| {
            // In text, each outcome is printed at once: a pod may take a minute.
            let Outcome { namespace, name, succeeded, message } = &outcome;
            match output.output {
                Output::Text if *succeeded => {
                    // A closed pipe does not stop the pods that are left.
                    let _ = output::print(&format!("pod {namespace}/{name}: {message}\n"));
                }
                Output::Text => eprintln!("istio-aux: pod {namespace}/{name}: {message}"),
                Output::Json | Output::Yaml => {}
            }
            outcomes.push(outcome);
        };
        let agrees = |pods: &[StuckPod]| !asks || pods.is_empty() || agrees(pods);
        finish::run(&client, selection, dry_run, timeout, agrees, report).await?;
        let text = if outcomes.is_empty() { format!("no pod is stuck in {place}\n") } else { String::new() };
        output.print(&json!({"pods": outcomes}), &text)?;
        Ok(outcomes.iter().all(|outcome| outcome.succeeded))
    })
}

/// Asks before the proxies of these pods are ended.
fn agrees(pods: &[StuckPod]) -> bool {
    let line = |pod: &StuckPod| format!("{}/{} (its containers ended at {})", pod.namespace, pod.name, pod.since);
    output::agrees(pods.iter().map(line), &format!("End the proxies of these {} pods?", pods.len()))
}
