//! The protocol of the agent's socket: one request and one response for each connection, each a line of JSON.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};

/// Returns the agent's socket.
#[must_use]
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("node.sock")
}

/// Returns the directory of the tombstones: files named after sandboxes whose deletion the agent has not seen.
#[must_use]
pub fn tombstones(run_dir: &Path) -> PathBuf {
    run_dir.join("tombstones")
}

/// Is a request of the plugin to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "camelCase")]
pub enum Request {
    /// Start the sandbox' proxy, and respond once it is ready.
    Add(Box<Sandbox>),
    /// Respond with an error unless the sandbox' proxy is ready.
    Check {
        /// The sandbox' id.
        id: String,
    },
    /// End the sandbox' proxy, and respond once its containers and files are removed.
    Delete {
        /// The sandbox' id.
        id: String,
    },
    /// Respond: the agent takes requests.
    Status,
    /// Respond with an error where a rollout of this agent must not go on: an upgrade of a proxy has failed, or none has ended yet.
    /// Its probe asks, and no plugin.
    Rollout,
    /// Ask the runtime at once which sandboxes it has, and begin to end the proxies of others.
    Collect,
}

/// Describes a pod's sandbox, as the container runtime describes it to a CNI plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The runtime's id. A pod whose sandbox is created again gets another.
    pub id: String,
    /// The file of its network namespace, on the node.
    pub netns: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// The addresses that the plugins before this one assigned.
    pub addresses: Vec<IpAddr>,
    /// The pod's cgroup, as the kubelet named it.
    pub cgroup_path: String,
    /// The pod's resolver, which the runtime writes into its containers' `/etc/resolv.conf`.
    #[serde(default)]
    pub dns: Dns,
}

/// Configures a resolver, as the kubelet does by the pod's `dnsPolicy` and `dnsConfig`. containerd names the fields as Go does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Addresses of name servers; empty where the runtime says nothing.
    #[serde(default, alias = "Servers", deserialize_with = "list")]
    pub servers: Vec<String>,
    /// Domains in which names are looked up.
    #[serde(default, alias = "Searches", deserialize_with = "list")]
    pub searches: Vec<String>,
    /// Options, such as `ndots:5`.
    #[serde(default, alias = "Options", deserialize_with = "list")]
    pub options: Vec<String>,
}

/// Reads a list; Go writes an empty one as null.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Is the agent's response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The reason of a failure; `None` where the agent has done what was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
