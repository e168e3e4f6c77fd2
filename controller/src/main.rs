//! Runs `istio-aux-controller`, which keeps what Kubeflow's tenants need in their namespaces.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use controller::ControllerArgs;

fn main() -> ExitCode {
    webhook::parse().map_or_else(|status| status, ControllerArgs::run)
}
