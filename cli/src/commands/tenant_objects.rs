//! Runs `istio-aux tenant-objects`.

use anyhow::{Context, anyhow};
use clap::Args;
use inject::tenancy::objects::{pod_default, role_binding};
use inject::tenancy::wish::accounts_of;

use super::CliResult;
use super::manifests::namespace;
use super::output::print;

/// Print the objects of a Kubeflow tenant, for clusters whose objects come from a repository
#[derive(Debug, Args)]
#[command(
    long_about = "Print the objects of a Kubeflow tenant, for clusters whose objects come from a repository.

The same objects that istio-aux-controller keeps. The cluster is not read.",
    after_help = "examples:
  istio-aux tenant-objects team | kubectl apply --server-side -f -
  istio-aux tenant-objects team --accounts=default,trainer --without-pod-default > team.yaml"
)]
pub(super) struct TenantObjectsArgs {
    /// The tenant's namespace
    #[arg(value_name = "NAMESPACE", value_parser = namespace)]
    namespace: String,
    /// The service accounts that may use Kubeflow Pipelines, separated by commas
    #[arg(long, value_name = "NAMES", default_value = "default")]
    accounts: String,
    /// Leave out the `PodDefault`, where the cluster does not have that kind
    #[arg(long)]
    without_pod_default: bool,
}

pub(super) fn run(arguments: &TenantObjectsArgs) -> CliResult {
    let accounts = accounts_of(&arguments.accounts).map_err(|reason| anyhow!("--accounts: {reason}"))?;
    let mut objects = vec![role_binding(&arguments.namespace, &accounts)];
    if !arguments.without_pod_default {
        objects.push(pod_default(&arguments.namespace));
    }
    for object in objects {
        print(&format!("---\n{}", serde_saphyr::to_string(&object).context("cannot write")?))?;
    }
    Ok(true)
}
