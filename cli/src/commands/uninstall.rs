//! Runs `istio-aux uninstall`.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::CliResult;
use super::cluster::ClusterArgs;
use super::output::{self, Output, OutputArgs, print};
use crate::uninstall::{self, Deletion, Plan};

/// Remove istio-aux from the cluster, in an order in which no pod is rejected
#[derive(Debug, Args)]
#[command(
    long_about = "Remove istio-aux from the cluster, in an order in which no pod is rejected.

First what the API server calls for each pod, then the controller for tenants and what it has applied, then the rest of an
installation by kubectl. What belongs to a release of Helm, and the namespace, are left to the commands that it prints.
Labels of namespaces stay; those for node proxies keep new pods out of the mesh. On a terminal, it asks first. Pods that run keep their shim; it lists those in
mode status, which do not complete without the webhook, and says if Argo CD or Flux keeps the objects: suspend it before.
Wherever it stopped, it can be run again. Of a charm: juju remove-application. Exit status: 0 all is removed,
1 something is not, 2 wrong arguments.",
    after_help = "examples:
  istio-aux uninstall --dry-run
  istio-aux uninstall --yes
  istio-aux uninstall --yes -o json | jq -r '.next[]'"
)]
pub(super) struct UninstallArgs {
    /// Print what would be deleted, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask on a terminal
    #[arg(short, long)]
    yes: bool,
    /// The installation's namespace; without it, the one that its webhook configurations name
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// How long the controller's pods may take to end
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: UninstallArgs) -> CliResult {
    let UninstallArgs { dry_run, yes, namespace, timeout, output, cluster } = arguments;
    cluster.run(async |client| {
        let plan = uninstall::plan(&client, namespace).await?;
        for pod in &plan.waiting_pods {
            eprintln!("istio-aux: pod {pod} does not complete without the webhook; next: let it end before, or istio-aux finish");
        }
        if let Some(kept_by) = &plan.kept_by {
            eprintln!("istio-aux: {kept_by}");
        }
        let mut deletions = Vec::new();
        if dry_run {
            deletions = uninstall::dry_run(&plan);
        } else if plan.len() > 0 {
            if !yes && !agrees(&plan) {
                bail!("nothing was changed");
            }
            let report = |deletion: Deletion| {
                if output.output == Output::Text {
                    // A closed pipe does not stop the removal halfway.
                    let _ = print(&format!("{}\n", line(&deletion, false)));
                }
                deletions.push(deletion);
            };
            if let Err(error) = uninstall::run(&client, &plan, timeout, report).await {
                output.print(&json!({"objects": deletions, "waitingPods": plan.waiting_pods, "next": []}), "")?;
                return Err(error);
            }
        }
        let text = text(&plan, dry_run.then_some(&deletions));
        output.print(&json!({"objects": deletions, "waitingPods": plan.waiting_pods, "next": plan.next}), &text)?;
        Ok(deletions.iter().all(|deletion| deletion.error.is_none()))
    })
}

fn agrees(plan: &Plan) -> bool {
    let lines = uninstall::dry_run(plan).into_iter().map(|deletion| line(&deletion, true));
    output::agrees(lines, &format!("Delete these {} objects?", plan.len()))
}

/// Returns what is printed besides the deletions that were reported: those of a dry run, and the next steps.
fn text(plan: &Plan, dry_run: Option<&Vec<Deletion>>) -> String {
    let mut lines: Vec<String> = dry_run.into_iter().flatten().map(|deletion| line(deletion, true)).collect();
    if plan.len() == 0 {
        lines.push("nothing of istio-aux is there to delete".to_owned());
    }
    lines.extend(plan.next.iter().map(|command| format!("next: {command}")));
    // Ends the last line, too.
    lines.push(String::new());
    lines.join("\n")
}

fn line(deletion: &Deletion, is_planned: bool) -> String {
    let Deletion { kind, namespace, name, error } = deletion;
    let place = namespace.as_ref().map_or(String::new(), |namespace| format!(" in {namespace}"));
    match error {
        Some(error) => format!("{kind} {name}{place} is not deleted: {error}"),
        None if is_planned => format!("to delete: {kind} {name}{place}"),
        None => format!("deleted {kind} {name}{place}"),
    }
}
