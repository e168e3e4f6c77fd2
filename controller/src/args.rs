//! Defines the command line of `istio-aux-controller`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use contract::names::PIPELINES_ROLE;
use webhook::log::LogArgs;

use crate::controller;

/// Keep what Kubeflow's tenants need in their namespaces
#[derive(Debug, Parser)]
#[command(
    name = "istio-aux-controller",
    version,
    long_about = "Keep what Kubeflow's tenants need in their namespaces.

In each namespace with the label istio-aux.io/tenancy=enabled: a RoleBinding that lets the service accounts that the
namespace names use Kubeflow Pipelines, and the PodDefault access-ml-pipeline where that kind exists. Of several replicas
one leads, elected by a Lease.
docs/tenancy.md says what a user types and sees.",
    after_help = "example, in a pod: istio-aux-controller; deploy/overlays/tenancy has its account"
)]
pub struct ControllerArgs {
    /// The namespace of the Lease; by default the namespace of the pod
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// The Lease that elects a replica; it is created if there is none
    #[arg(long, value_name = "NAME", default_value = "istio-aux-tenancy")]
    pub(crate) lease: String,
    /// The `ClusterRoles` that may be bound, separated by commas. A namespace asks for one by the annotation
    /// istio-aux.io/pipelines-role
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = PIPELINES_ROLE)]
    pub(crate) roles: Vec<String>,
    /// This replica's name, which must be unique: the name of its pod
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide_env_values = true)]
    pub(crate) identity: String,
    /// Where /healthz, /readyz and /metrics are served, in plain HTTP
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8080")]
    pub(crate) health_listen: SocketAddr,
    #[command(flatten)]
    log: LogArgs,
}

impl ControllerArgs {
    /// Runs the controller until SIGTERM or SIGINT. Returns the exit status: 0 stopped, 1 failed.
    #[must_use]
    pub fn run(self) -> ExitCode {
        self.log.start();
        match controller::run(&self) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("istio-aux-controller: {}", api::describe_error(error.as_ref()));
                ExitCode::FAILURE
            }
        }
    }
}
