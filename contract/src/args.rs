//! The arguments of `aux-shim`, as the webhook writes them into a pod and the shim reads them.

use crate::endpoint::Endpoint;
use crate::names::{DEFAULT_STATUS_PORT, PROXY_CONTAINER};
use crate::policy::{ContainerPolicy, RestartPolicy};

/// Subcommand: watch the pod's containers, and end the proxy when the awaited ones have finished.
pub const WATCH: &str = "watch";
/// Subcommand: watch as the parent of the proxy's own command.
pub const SUPERVISE: &str = "supervise";
/// Subcommand: be the parent of one container's command, and report its start and end in a directory.
pub const WRAP: &str = "wrap";
/// Subcommand: run one container's command once another container's process is idle.
pub const START_AFTER: &str = "start-after";
/// Subcommand: copy the binary into a directory.
pub const INSTALL: &str = "install";
/// Option: a container to wait for; repeatable.
pub const AWAIT: &str = "await";
/// Option: a regular container that is not waited for; repeatable.
pub const HELPER: &str = "helper";
/// Option: a container that the kubelet may restart after any exit code; repeatable.
pub const MAY_RESTART: &str = "may-restart";
/// Option: the pod's restart policy.
pub const RESTART_POLICY: &str = "restart-policy";
/// Option: `NAME=POLICY`, for a container that has a restart policy of its own.
pub const CONTAINER_POLICY: &str = "container-policy";
/// Option: the proxy's container.
pub const PROXY: &str = "proxy";
/// Option: pilot-agent's port on localhost; 0 where it is off.
pub const STATUS_PORT: &str = "status-port";
/// Option: an endpoint that gets a `POST` before the proxy does; repeatable.
pub const QUIT: &str = "quit";
/// Option: a file that keeps what was observed, for a shim that is restarted.
pub const STATE: &str = "state";
/// Option: for how many seconds an uncertain exit delays the proxy's end: its code is unknown, its container is not
/// identified, or a start was announced and not seen.
pub const RETRY_WINDOW: &str = "retry-window";
/// Option of `watch`: wait for SIGTERM when all is over.
pub const STAY: &str = "stay";
/// Option: the directory in which wrapped containers report; each has a subdirectory of its name.
/// Of `wrap`: the container's own subdirectory.
pub const LOCK_DIR: &str = "lock-dir";
/// Option of `start-after`: an argument of the other container's command.
pub const ARGUMENT: &str = "argument";
/// The end of the options, before a command.
pub const END_OF_OPTIONS: &str = "--";

/// Arguments of `aux-shim watch`, and those of `aux-shim supervise` before its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchArgs {
    /// Containers to wait for; at least one.
    pub awaited: Vec<String>,
    /// Regular containers that are not waited for. The shim exits after them, because the kubelet restarts
    /// a native sidecar that exits while regular containers run.
    pub helpers: Vec<String>,
    /// Containers that the kubelet may restart after any exit code: those with a liveness or startup probe,
    /// or with a `resizePolicy` of `RestartContainer`.
    pub may_restart: Vec<String>,
    /// The pod's restart policy.
    pub restart_policy: RestartPolicy,
    /// The policies of containers that have their own.
    pub container_policies: Vec<(String, ContainerPolicy)>,
    /// The proxy's container.
    pub proxy: String,
    /// pilot-agent's port on localhost; 0 where it is off.
    pub status_port: u16,
    /// Endpoints that get a `POST` before the proxy does.
    pub quit: Vec<Endpoint>,
    /// The file that keeps what was observed.
    pub state: Option<String>,
    /// The value of [`RETRY_WINDOW`]. Without it, the shim derives it from the kubelet's back-off and time-outs.
    pub retry_window: Option<u32>,
    /// Waits for SIGTERM when all is over. In a pod with native sidecars besides the shim, the
    /// kubelet ends those only while the shim runs.
    pub stay: bool,
    /// The directory in which wrapped containers report. Without it, containers are observed in the pod's
    /// shared PID namespace.
    pub lock_dir: Option<String>,
}

/// Arguments of `aux-shim wrap` before its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrapArgs {
    /// The directory in which this container reports, which no other container may write.
    pub lock_dir: String,
}

impl WrapArgs {
    /// Returns the words before a container's own command, the first being the binary.
    #[must_use]
    pub fn to_command(&self, binary: &str) -> Vec<String> {
        vec![binary.to_owned(), WRAP.to_owned(), option(LOCK_DIR, &self.lock_dir), END_OF_OPTIONS.to_owned()]
    }
}

/// Arguments of `aux-shim start-after` before its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartAfterArgs {
    /// An argument of the other container's command, by which its process is found in a shared PID namespace.
    pub argument: String,
}

impl StartAfterArgs {
    /// Returns the words before a container's own command, the first being the binary.
    #[must_use]
    pub fn to_command(&self, binary: &str) -> Vec<String> {
        vec![binary.to_owned(), START_AFTER.to_owned(), option(ARGUMENT, &self.argument), END_OF_OPTIONS.to_owned()]
    }
}

fn option(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}

impl WatchArgs {
    /// Waits for the given containers, with Istio's own names and ports for the rest.
    #[must_use]
    pub fn new(awaited: Vec<String>, restart_policy: RestartPolicy) -> Self {
        Self {
            awaited,
            helpers: Vec::new(),
            may_restart: Vec::new(),
            restart_policy,
            container_policies: Vec::new(),
            proxy: PROXY_CONTAINER.to_owned(),
            status_port: DEFAULT_STATUS_PORT,
            quit: Vec::new(),
            state: None,
            retry_window: None,
            stay: false,
            lock_dir: None,
        }
    }

    /// Returns the restart policy of a container: its own, or the pod's.
    #[must_use]
    pub fn policy_of(&self, container: &str) -> ContainerPolicy {
        let own = self.container_policies.iter().find(|(name, _)| name == container);
        own.map_or_else(|| self.restart_policy.into(), |(_, policy)| policy.clone())
    }

    /// Returns the arguments of `watch` after the binary's name, for a container's `args`.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![WATCH.to_owned()];
        args.extend(self.options());
        args
    }

    /// Returns the words of `supervise` before the proxy's own command, the first being the binary.
    #[must_use]
    pub fn to_supervising_command(&self, binary: &str) -> Vec<String> {
        let mut words = vec![binary.to_owned(), SUPERVISE.to_owned()];
        words.extend(self.options());
        words.push(END_OF_OPTIONS.to_owned());
        words
    }

    fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = self.awaited.iter().map(|name| option(AWAIT, name)).collect();
        options.extend(self.helpers.iter().map(|name| option(HELPER, name)));
        options.extend(self.may_restart.iter().map(|name| option(MAY_RESTART, name)));
        options.push(option(RESTART_POLICY, self.restart_policy.as_str()));
        let policies = self.container_policies.iter().map(|(name, policy)| format!("{name}={policy}"));
        options.extend(policies.map(|policy| option(CONTAINER_POLICY, &policy)));
        options.push(option(PROXY, &self.proxy));
        options.push(option(STATUS_PORT, &self.status_port.to_string()));
        options.extend(self.quit.iter().map(|endpoint| option(QUIT, &endpoint.to_string())));
        options.extend(self.state.iter().map(|file| option(STATE, file)));
        options.extend(self.retry_window.iter().map(|seconds| option(RETRY_WINDOW, &seconds.to_string())));
        options.extend(self.stay.then(|| format!("--{STAY}")));
        options.extend(self.lock_dir.iter().map(|directory| option(LOCK_DIR, directory)));
        options
    }
}
