//! What a pod of a Kubeflow tenant gets: a token for pipelines, and a place in the mesh. Each is an entry of its own in the
//! webhook configuration, selected by a label of the namespace, because the webhook does not see namespaces.

mod mesh;
pub mod objects;
mod pipelines_token;
pub mod wish;

use json_patch::Patch;

pub use self::mesh::join_mesh;
pub use self::pipelines_token::add_pipelines_token;

/// What is done to a pod, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct TenancyDecision {
    /// What changes; empty where nothing does.
    pub patch: Patch,
    /// The reason, for the log.
    pub reason: &'static str,
    /// For whoever creates the pod.
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
