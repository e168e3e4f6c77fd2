//! Runs `istio-aux tenant-objects`.

use anyhow::{Context, anyhow};
use clap::Args;
use contract::names::PIPELINES_ROLE;
use inject::tenancy::desired::accounts_of;
use inject::tenancy::objects::{pod_default, role_binding};

use super::CliResult;
use super::manifests::namespace;
use super::output::print;
use crate::installation::pipelines_role;

/// Print the objects of a Kubeflow tenant, for clusters whose objects come from a repository
#[derive(Debug, Args)]
#[command(
    long_about = "Print the objects of a Kubeflow tenant, for clusters whose objects come from a repository.

The same objects that istio-aux-controller keeps, and it leaves those alone that others have applied. The cluster is not
read. Who may submit runs may do in the namespace what any of its accounts may.",
    after_help = "examples:
  istio-aux tenant-objects team --accounts=trainer --with-cluster-role | kubectl apply --server-side -f -
  istio-aux tenant-objects team --accounts=trainer,loader --role=kubeflow-pipelines-view --without-pod-default > team.yaml"
)]
pub(super) struct TenantObjectsArgs {
    /// The tenant's namespace
    #[arg(value_name = "NAMESPACE", value_parser = namespace)]
    namespace: String,
    /// The service accounts that may use Kubeflow Pipelines, separated by commas; without it, no `RoleBinding` is printed
    #[arg(long, value_name = "NAMES", default_value = "")]
    accounts: String,
    /// The `ClusterRole` to which they are bound
    #[arg(long, value_name = "NAME", default_value = PIPELINES_ROLE)]
    role: String,
    /// Print the `ClusterRole` `istio-aux-pipelines`, too, where istio-aux is installed without `tenancy.enabled`
    #[arg(long)]
    with_cluster_role: bool,
    /// Leave out the `PodDefault`, where the cluster does not have that kind
    #[arg(long)]
    without_pod_default: bool,
}

pub(super) fn run(arguments: &TenantObjectsArgs) -> CliResult {
    let accounts = accounts_of(&arguments.accounts).map_err(|reason| anyhow!("--accounts: {reason}"))?;
    let mut objects = Vec::new();
    if arguments.with_cluster_role {
        objects.push(pipelines_role()?);
    }
    if !accounts.is_empty() {
        objects.push(role_binding(&arguments.namespace, &arguments.role, &accounts));
    }
    if !arguments.without_pod_default {
        objects.push(pod_default(&arguments.namespace));
    }
    for object in objects {
        print(&format!("---\n{}", serde_saphyr::to_string(&object).context("cannot write")?))?;
    }
    Ok(true)
}
