//! The arguments of `aux-shim`, as the webhook writes them into a pod and the shim reads them.

use crate::endpoint::Endpoint;
use crate::names::{DEFAULT_STATUS_PORT, PROXY_CONTAINER};
use crate::policy::{ContainerPolicy, RestartPolicy};

/// Subcommand: watch the pod's containers, and end the proxy when the awaited ones have finished.
pub const WATCH: &str = "watch";
/// Subcommand: the same as the parent of the proxy's own command.
pub const SUPERVISE: &str = "supervise";
/// Subcommand: be the parent of one container's command, and say in a shared folder how it is.
pub const WRAP: &str = "wrap";
/// Subcommand: copy the binary into a folder.
pub const INSTALL: &str = "install";
/// Option: a container to wait for; once for each.
pub const AWAIT: &str = "await";
/// Option: a regular container that is not waited for, but outlived; once for each.
pub const OUTLIVE: &str = "outlive";
/// Option: the pod's restart policy.
pub const RESTART_POLICY: &str = "restart-policy";
/// Option: `NAME=POLICY`, for a container that has a restart policy of its own.
pub const CONTAINER_POLICY: &str = "container-policy";
/// Option: the proxy's container.
pub const PROXY: &str = "proxy";
/// Option: the port on which pilot-agent answers on localhost; 0 where it is off.
pub const STATUS_PORT: &str = "status-port";
/// Option: an endpoint that is sent a `POST` before the proxy is asked to quit; once for each.
pub const QUIT: &str = "quit";
/// Option: a file that remembers what was seen, for a shim that is started again.
pub const STATE: &str = "state";
/// Option: seconds in which a container that ended with an unknown code is expected back.
pub const RETRY_WINDOW: &str = "retry-window";

/// Option: a folder in which wrapped containers say how they are, where the PID namespace does not show them.
pub const LOCKS: &str = "locks";
/// Option of `wrap`: the container's name.
pub const NAME: &str = "name";
/// What ends the options, before a command.
pub const END_OF_OPTIONS: &str = "--";

/// Arguments of `aux-shim watch`, and those of `aux-shim supervise` before its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// Containers to wait for; at least one.
    pub awaited: Vec<String>,
    /// Regular containers that are not waited for. The shim ends after them, because a native sidecar
    /// that ends while regular containers run is started again.
    pub outlived: Vec<String>,
    /// The pod's restart policy.
    pub restart_policy: RestartPolicy,
    /// The policies of containers that have their own.
    pub container_policies: Vec<(String, ContainerPolicy)>,
    /// The proxy's container.
    pub proxy: String,
    /// The port on which pilot-agent answers on localhost; 0 where it is off.
    pub status_port: u16,
    /// What else is told to quit, before the proxy.
    pub quit: Vec<Endpoint>,
    /// Where what was seen is remembered.
    pub state: Option<String>,
    /// Seconds in which a container that ended with an unknown code is expected back; the shim's own reckoning where absent.
    pub retry_window: Option<u32>,
    /// Where wrapped containers say how they are; without it they are watched in the shared PID namespace.
    pub locks: Option<String>,
}

/// Arguments of `aux-shim wrap` before its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrap {
    /// The container's name.
    pub name: String,
    /// Where it says how it is.
    pub locks: String,
}

impl Wrap {
    /// The words before a container's own command, the first being the binary.
    #[must_use]
    pub fn to_command(&self, binary: &str) -> Vec<String> {
        let Self { name, locks } = self;
        vec![binary.to_owned(), WRAP.to_owned(), option(NAME, name), option(LOCKS, locks), END_OF_OPTIONS.to_owned()]
    }
}

fn option(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}

impl Watch {
    /// Waits for the given containers, with Istio's own names and ports for the rest.
    #[must_use]
    pub fn new(awaited: Vec<String>, restart_policy: RestartPolicy) -> Self {
        Self {
            awaited,
            outlived: Vec::new(),
            restart_policy,
            container_policies: Vec::new(),
            proxy: PROXY_CONTAINER.to_owned(),
            status_port: DEFAULT_STATUS_PORT,
            quit: Vec::new(),
            state: None,
            retry_window: None,
            locks: None,
        }
    }

    /// How a container is restarted.
    #[must_use]
    pub fn policy_of(&self, container: &str) -> ContainerPolicy {
        let own = self.container_policies.iter().find(|(name, _)| name == container);
        own.map_or_else(|| self.restart_policy.into(), |(_, policy)| policy.clone())
    }

    /// The arguments of `watch` after the binary's name, for a container's `args`.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![WATCH.to_owned()];
        args.extend(self.options());
        args
    }

    /// The words of `supervise` before the proxy's own command, the first being the binary.
    #[must_use]
    pub fn to_supervising_command(&self, binary: &str) -> Vec<String> {
        let mut words = vec![binary.to_owned(), SUPERVISE.to_owned()];
        words.extend(self.options());
        words.push(END_OF_OPTIONS.to_owned());
        words
    }

    fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = self.awaited.iter().map(|name| option(AWAIT, name)).collect();
        options.extend(self.outlived.iter().map(|name| option(OUTLIVE, name)));
        options.push(option(RESTART_POLICY, self.restart_policy.as_str()));
        let policies = self.container_policies.iter().map(|(name, policy)| format!("{name}={policy}"));
        options.extend(policies.map(|policy| option(CONTAINER_POLICY, &policy)));
        options.push(option(PROXY, &self.proxy));
        options.push(option(STATUS_PORT, &self.status_port.to_string()));
        options.extend(self.quit.iter().map(|endpoint| option(QUIT, &endpoint.to_string())));
        options.extend(self.state.iter().map(|file| option(STATE, file)));
        options.extend(self.retry_window.iter().map(|seconds| option(RETRY_WINDOW, &seconds.to_string())));
        options.extend(self.locks.iter().map(|folder| option(LOCKS, folder)));
        options
    }
}
