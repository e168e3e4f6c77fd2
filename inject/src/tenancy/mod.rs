//! Decisions for pods of a Kubeflow tenant: a token for pipelines, and the mesh. Each has an entry of its own in the webhook
//! configuration, selected by a label of the namespace, because the webhook does not see namespaces.

mod mesh;
pub mod objects;
mod pipelines_token;
pub mod wish;

use json_patch::Patch;

pub use self::mesh::join_mesh;
pub use self::pipelines_token::add_pipelines_token;

/// A decision for a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct TenancyDecision {
    /// The changes; empty where there are none.
    pub patch: Patch,
    /// The reason, for the log.
    pub reason: &'static str,
    /// Warnings for the client that creates the pod.
    pub warnings: Vec<String>,
}

impl TenancyDecision {
    fn unchanged(reason: &'static str) -> Self {
        Self { patch: Patch::default(), reason, warnings: Vec::new() }
    }

    fn changed(patch: Patch, reason: &'static str) -> Self {
        Self { patch, reason, warnings: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
