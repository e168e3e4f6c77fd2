//! One request and one response for each connection to the agent's socket, each a line of JSON.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What the plugin asks the agent for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "camelCase")]
pub enum Request {
    /// Start the sandbox' proxy, and respond once it is ready.
    Add(Sandbox),
    /// Respond whether the sandbox' proxy is ready.
    Check {
        /// The sandbox' id.
        id: String,
    },
    /// End the sandbox' proxy, and respond once nothing of it is left.
    Delete {
        /// The sandbox' id.
        id: String,
    },
}

/// A pod's sandbox, as the container runtime describes it to a CNI plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The runtime's id of it. A pod whose sandbox is created again gets another.
    pub id: String,
    /// The file of its network namespace, on the node.
    pub netns: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// Its addresses, as the plugins before this one gave them.
    pub addresses: Vec<IpAddr>,
    /// The pod's cgroup, as the kubelet named it.
    pub cgroup_path: String,
}

/// What the agent responds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Why it did not do what was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
