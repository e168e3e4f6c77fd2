//! The arguments of `aux-shim`, as the webhook writes them into a pod and the shim reads them.

use crate::endpoint::Endpoint;
use crate::names::{DEFAULT_STATUS_PORT, PROXY_CONTAINER};
use crate::policy::RestartPolicy;

/// Subcommand: watch the pod's containers, and end the proxy when the awaited ones have finished.
pub const WATCH: &str = "watch";
/// Subcommand: watch as the parent of the proxy's own command.
pub const SUPERVISE: &str = "supervise";
/// Subcommand: run one container's command once another container's process is idle.
pub const START_AFTER: &str = "start-after";
/// Subcommand: copy the binary into a directory.
pub const INSTALL: &str = "install";
/// Option: a container to wait for; repeatable.
pub const AWAIT: &str = "await";
/// Option: a container that may restart by other rules than the pod's policy; repeatable.
pub const MAY_RESTART: &str = "may-restart";
/// Option: the pod's restart policy.
pub const RESTART_POLICY: &str = "restart-policy";
/// Option: the proxy's container.
pub const PROXY: &str = "proxy";
/// Option: pilot-agent's port on localhost; 0 where it is off.
pub const STATUS_PORT: &str = "status-port";
/// Option: an endpoint that gets a `POST` before the proxy does; repeatable.
pub const QUIT: &str = "quit";
/// Option: the file with the pod's annotations.
pub const ANNOTATIONS: &str = "annotations";
/// Option: another container's exit may restart all containers.
pub const ALL_MAY_RESTART: &str = "all-may-restart";
/// Option: read no process; only the kubelet's report ends the proxy.
pub const REPORT_ONLY: &str = "report-only";
/// Option of `start-after`: an argument of the other container's command.
pub const ARGUMENT: &str = "argument";
/// The end of the options, before a command.
pub const END_OF_OPTIONS: &str = "--";

/// Arguments of `aux-shim watch`, and those of `aux-shim supervise` before its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchArgs {
    /// Containers to wait for; at least one.
    pub awaited: Vec<String>,
    /// Awaited containers that the kubelet may restart whatever the pod's policy says: because of a liveness or
    /// startup probe, a `resizePolicy`, or rules of their own.
    pub may_restart: Vec<String>,
    /// The pod's restart policy.
    pub restart_policy: RestartPolicy,
    /// The proxy's container.
    pub proxy: String,
    /// pilot-agent's port on localhost; 0 where it is off.
    pub status_port: u16,
    /// Endpoints that get a `POST` before the proxy does.
    pub quit: Vec<Endpoint>,
    /// The file with the pod's annotations, which brings the kubelet's report. Without it, there is none.
    pub annotations: Option<String>,
    /// An init container's exit may restart all containers (KEP-5532), so a report from before the shim's start is ignored.
    pub all_may_restart: bool,
    /// Reads no process: the containers do not share a PID namespace. Only the kubelet's report ends the proxy.
    pub report_only: bool,
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
    ["--", name, "=", value].concat()
}

impl WatchArgs {
    /// Waits for the given containers, with Istio's own names and ports for the rest.
    #[must_use]
    pub fn new(awaited: Vec<String>, restart_policy: RestartPolicy) -> Self {
        Self {
            awaited,
            may_restart: Vec::new(),
            restart_policy,
            proxy: PROXY_CONTAINER.to_owned(),
            status_port: DEFAULT_STATUS_PORT,
            quit: Vec::new(),
            annotations: None,
            all_may_restart: false,
            report_only: false,
        }
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
        options.extend(self.may_restart.iter().map(|name| option(MAY_RESTART, name)));
        options.push(option(RESTART_POLICY, self.restart_policy.as_str()));
        options.push(option(PROXY, &self.proxy));
        options.push(option(STATUS_PORT, &self.status_port.to_string()));
        options.extend(self.quit.iter().map(|endpoint| option(QUIT, &endpoint.to_string())));
        options.extend(self.annotations.iter().map(|file| option(ANNOTATIONS, file)));
        options.extend(self.all_may_restart.then(|| format!("--{ALL_MAY_RESTART}")));
        options.extend(self.report_only.then(|| format!("--{REPORT_ONLY}")));
        options
    }
}
