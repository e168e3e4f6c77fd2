//! The decisions that the webhook can be asked for, one by one. `review` has the envelope in which they are asked for.

use crate::pod::Pod;
use crate::{
    Decision, Settings, decide, join, move_completing_pods_proxy_to_node, move_proxy_to_node, report_ended, stay_out,
    tenancy,
};

/// The decision that a review asks for: each has a path of the webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    /// The startup hold and the shim.
    Injection,
    /// The token for Kubeflow Pipelines.
    PipelinesToken,
    /// A place in the mesh for pods that run to completion.
    Mesh,
    /// The proxy on the pod's node.
    Node,
    /// The proxy on the pod's node, for pods that run to completion.
    NodeMesh,
    /// The end of the awaited containers, when the kubelet reports it.
    Ended,
    /// The mesh, for applications of a Juju model.
    InMesh,
    /// No mesh, for Juju's own pods.
    OutOfMesh,
}

impl Entry {
    /// All entries.
    pub const ALL: [Self; 8] = [
        Self::Injection,
        Self::PipelinesToken,
        Self::Mesh,
        Self::Node,
        Self::NodeMesh,
        Self::Ended,
        Self::InMesh,
        Self::OutOfMesh,
    ];

    /// Returns the name in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Injection => "injection",
            Self::PipelinesToken => "pipelines-token",
            Self::Mesh => "mesh",
            Self::Node => "node",
            Self::NodeMesh => "node-mesh",
            Self::Ended => "ended",
            Self::InMesh => "in-mesh",
            Self::OutOfMesh => "out-of-mesh",
        }
    }

    pub(crate) fn decide(self, pod: &Pod, settings: &Settings) -> Decision {
        match self {
            Self::Injection => decide(pod, settings),
            Self::PipelinesToken => tenancy::add_pipelines_token(pod),
            Self::Mesh => tenancy::join_mesh(pod, settings),
            Self::Node => move_proxy_to_node(pod),
            Self::NodeMesh => move_completing_pods_proxy_to_node(pod),
            Self::Ended => report_ended(pod),
            Self::InMesh => join(pod),
            Self::OutOfMesh => stay_out(pod),
        }
    }

    /// Returns the operation and the subresource that the entry decides about.
    pub(crate) fn operation(self) -> (&'static str, &'static str) {
        match self {
            Self::Ended => ("UPDATE", "status"),
            _ => ("CREATE", ""),
        }
    }
}
