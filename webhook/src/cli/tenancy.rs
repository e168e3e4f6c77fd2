//! `istio-aux tenancy` and `istio-aux tenancy objects`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::CliResult;
use super::log::LogArgs;
use super::manifests::namespace;
use super::output::print;
use crate::delivery::{SHIM_BINARY_PATH, ShimBinary};
use crate::tenancy::{self, Duties, Options, accounts_of};

/// Keep what Kubeflow's tenants need in their namespaces, and the shim's binary where pods mount it
#[derive(Debug, Args)]
#[command(
    long_about = "Keep what Kubeflow's tenants need in their namespaces.

In each namespace with the label istio-aux.io/tenancy=enabled: a RoleBinding that lets its pods use Kubeflow Pipelines,
and the PodDefault access-ml-pipeline where that kind exists. With --duties=shim-delivery, in each namespace with the label
istio-aux.io/injection=enabled: a ConfigMap of the shim's binary, which pods mount. Of several replicas one acts, elected by
a Lease. docs/tenancy.md and docs/config-map.md say what a user types and sees.",
    args_conflicts_with_subcommands = true,
    after_help = "examples:
  istio-aux tenancy                                 # in a pod; deploy/components/tenancy has its account
  istio-aux tenancy objects team | kubectl apply --server-side -f -"
)]
pub(super) struct TenancyArgs {
    #[command(subcommand)]
    command: Option<TenancyCommand>,
    #[command(flatten)]
    controller: ControllerArgs,
}

#[derive(Debug, Args)]
struct ControllerArgs {
    /// The namespace of the Lease; by default the namespace of the pod
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// The Lease that elects a replica, which must exist
    #[arg(long, value_name = "NAME", default_value = "istio-aux-tenancy")]
    lease: String,
    /// This replica's name, which must be unique: the name of its pod
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide_env_values = true)]
    identity: Option<String>,
    /// What the controller keeps in namespaces: `tenants` (what Kubeflow's tenants need), `shim-delivery` (the shim's binary as a
    /// `ConfigMap`), or both
    #[arg(long, value_enum, value_name = "DUTIES", value_delimiter = ',', default_value = "tenants")]
    duties: Vec<Duty>,
    /// The shim's binary, for `shim-delivery`
    #[arg(long, value_name = "FILE", default_value = SHIM_BINARY_PATH)]
    shim_binary: PathBuf,
    /// Where /healthz, /readyz and /metrics are served, in plain HTTP
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8080")]
    health_listen: SocketAddr,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Duty {
    Tenants,
    ShimDelivery,
}

#[derive(Debug, Subcommand)]
enum TenancyCommand {
    Objects(ObjectsArgs),
}

/// Print the objects of a tenant, for clusters whose objects come from a repository
#[derive(Debug, Args)]
#[command(
    long_about = "Print the objects of a tenant, for clusters whose objects come from a repository.

The same objects that the controller keeps. Nothing of the cluster is read, and no account is needed.",
    after_help = "examples:
  istio-aux tenancy objects team | kubectl apply --server-side -f -
  istio-aux tenancy objects team --accounts=default,trainer --without-pod-default > team.yaml"
)]
struct ObjectsArgs {
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

pub(super) fn run(arguments: TenancyArgs) -> CliResult {
    match arguments.command {
        Some(TenancyCommand::Objects(arguments)) => objects(&arguments),
        None => controller(arguments.controller),
    }
}

fn controller(arguments: ControllerArgs) -> CliResult {
    arguments.log.start();
    let delivers = arguments.duties.contains(&Duty::ShimDelivery);
    let shim_binary = delivers.then(|| ShimBinary::read(&arguments.shim_binary)).transpose();
    let shim_binary = shim_binary.map_err(|reason| format!("--shim-binary: {reason}"))?;
    let options = Options {
        namespace: arguments.namespace,
        lease: arguments.lease,
        identity: arguments.identity.ok_or("no identity: set POD_NAME or --identity to the name of the pod")?,
        health_listen: arguments.health_listen,
        duties: Duties { tenants: arguments.duties.contains(&Duty::Tenants), shim_binary },
    };
    tenancy::run(options)?;
    Ok(ExitCode::SUCCESS)
}

fn objects(arguments: &ObjectsArgs) -> CliResult {
    let accounts = accounts_of(&arguments.accounts).map_err(|reason| format!("--accounts: {reason}"))?;
    let mut objects = vec![tenancy::role_binding(&arguments.namespace, &accounts)];
    if !arguments.without_pod_default {
        objects.push(tenancy::pod_default(&arguments.namespace));
    }
    for object in objects {
        let yaml = serde_saphyr::to_string(&object);
        print(&format!("---\n{}", yaml.map_err(|error| format!("cannot write: {error}"))?))?;
    }
    Ok(ExitCode::SUCCESS)
}
