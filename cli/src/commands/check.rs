//! Runs `istio-aux check`.

use std::time::Duration;

use clap::Args;
use inject::args::{ShimArgs, default_settings};
use serde_json::json;

use super::cluster::{ClusterArgs, namespace_or_default};
use super::output::OutputArgs;
use super::{CliResult, explain};
use crate::check::{self, Id, Scope};
use crate::explain::{Target, explain};
use crate::installation::{configurations, installed_settings};
use crate::pods::Selectors;

/// Check a cluster, or explain one object's pods: what is wrong, and what to do about it
#[derive(Debug, Args)]
#[command(
    long_about = "Check a cluster, or explain one object's pods: what is wrong, and what to do about it.

Reads versions, Istio's injectors, the webhook and its certificate, namespaces and pods, with your own rights, and says
what it may not read. It asks the API server for a pod as a dry run: in namespaces that are opted in, and with --pre for
one in the mesh, which may get a native sidecar. With KIND/NAME, it reads the object, its namespace and its pods, and
asks for a pod of its template as a dry run; without the right to create pods, the decision is made here. Kinds: pod, job,
cronjob, deployment and their like, jobset, and the training operator's jobs. In JSON, \"healthy\" is false where there is a
problem, \"complete\" where something could not be read, and with --wait \"ready\" where new pods are not served yet: problems of
pods that are there and of namespaces' labels do not count there. Exit status: 0 healthy, ready or explained; 1 there is a
problem, or the object cannot be read; 2 wrong arguments.",
    after_help = "examples:
  istio-aux check
  istio-aux check -n team job/hello        # why its pods are injected, or not
  istio-aux check --pre                    # before an installation
  istio-aux check --wait --timeout 5m      # after it
  istio-aux check -n team -l app=training -o json
  istio-aux check --probe                  # before delivery image-volume"
)]
pub(super) struct CheckArgs {
    /// Explain this object only: whether its pods are injected, why, and what would be decided now
    #[arg(value_name = "KIND/NAME", conflicts_with_all = ["pre", "wait", "selector", "probe"])]
    object: Option<Target>,
    /// Check whether the cluster is ready for an installation, and your rights are enough for it
    #[arg(long, conflicts_with_all = ["namespace", "selector", "wait", "probe"])]
    pre: bool,
    /// Check again until new pods are served; pods that are stuck or wait for an image, and labels of namespaces, do not count
    #[arg(long, conflicts_with = "probe")]
    wait: bool,
    /// How long --wait may take
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Check only this namespace, and print the decision for each of its pods; of KIND/NAME, its namespace (default: the context's)
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Check only pods with these labels
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Run the shim from an image volume on one node of each kind, in the namespace (default: the context's)
    #[arg(long)]
    probe: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    shim: ShimArgs,
}

pub(super) fn run(arguments: CheckArgs) -> CliResult {
    let CheckArgs { object, pre, wait, timeout, namespace, selector, probe, output, cluster, shim } = arguments;
    // Without an option for the shim, the webhook's own settings count.
    let settings = Some(shim.settings(true)).filter(|settings| *settings != default_settings());
    cluster.run(async |client| {
        if let Some(object) = object {
            let namespace = namespace_or_default(namespace, &client);
            let configurations = configurations(&client).await.unwrap_or_default();
            let settings = match settings {
                Some(settings) => settings,
                None => installed_settings(&client, &configurations).await.unwrap_or_else(default_settings),
            };
            let explanation = explain(&client, &namespace, &object, &Selectors::of(&configurations), &settings).await?;
            output.print(&explanation, &explain::render(&explanation))?;
            return Ok(true);
        }
        let probe_in = probe.then(|| namespace_or_default(namespace.clone(), &client));
        let scope = Scope { namespace, selector: selector.unwrap_or_default(), probe_in, settings };
        let findings = if pre {
            check::before_installation(&client).await?
        } else if wait {
            check::wait_until_ready(&client, &scope, timeout).await?
        } else {
            check::run(&client, &scope).await?
        };
        let (healthy, ready) = (check::is_healthy(&findings), wait.then(|| check::is_ready(&findings)));
        let complete = findings.iter().all(|finding| finding.id != Id::Unreadable);
        let mut result = json!({"healthy": healthy, "complete": complete, "findings": findings});
        if let Some(ready) = ready {
            result["ready"] = ready.into();
        }
        output.print(&result, &check::render(&findings))?;
        Ok(ready.unwrap_or(healthy))
    })
}
