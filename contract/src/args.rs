//! The arguments of `aux-shim`, as the webhook writes them into a pod and the shim reads them.

use crate::names::{DEFAULT_STATUS_PORT, PROXY_CONTAINER};
use crate::policy::RestartPolicy;

/// Subcommand: watch the pod's containers, and end the proxy when the awaited ones have finished.
pub const WATCH: &str = "watch";
/// Option: a container to wait for; once for each.
pub const AWAIT: &str = "await";
/// Option: a regular container that is not waited for, but outlived; once for each.
pub const OUTLIVE: &str = "outlive";
/// Option: the pod's restart policy.
pub const RESTART_POLICY: &str = "restart-policy";
/// Option: the proxy's container.
pub const PROXY: &str = "proxy";
/// Option: the port on which pilot-agent answers on localhost.
pub const STATUS_PORT: &str = "status-port";

/// Arguments of `aux-shim watch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// Containers to wait for; at least one.
    pub awaited: Vec<String>,
    /// Regular containers that are not waited for. The shim ends after them, because a native sidecar
    /// that ends while regular containers run is started again.
    pub outlived: Vec<String>,
    /// The pod's restart policy.
    pub restart_policy: RestartPolicy,
    /// The proxy's container.
    pub proxy: String,
    /// The port on which pilot-agent answers on localhost.
    pub status_port: u16,
}

impl Watch {
    /// Waits for the given containers, with Istio's own names and ports for the rest.
    #[must_use]
    pub fn new(awaited: Vec<String>, restart_policy: RestartPolicy) -> Self {
        Self {
            awaited,
            outlived: Vec::new(),
            restart_policy,
            proxy: PROXY_CONTAINER.to_owned(),
            status_port: DEFAULT_STATUS_PORT,
        }
    }

    /// The arguments after the binary's name, for a container's `args`.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let mut args = vec![WATCH.to_owned()];
        args.extend(self.awaited.iter().map(|name| option(AWAIT, name)));
        args.extend(self.outlived.iter().map(|name| option(OUTLIVE, name)));
        args.push(option(RESTART_POLICY, self.restart_policy.as_str()));
        args.push(option(PROXY, &self.proxy));
        args.push(option(STATUS_PORT, &self.status_port.to_string()));
        args
    }
}
