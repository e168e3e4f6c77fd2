//! Decisions for pods of a Kubeflow tenant: a token for pipelines, and the mesh. Each has an entry of its own in the webhook
//! configuration, selected by a label of the namespace, because the webhook does not see namespaces.

pub mod desired;
mod mesh;
pub mod objects;
mod pipelines_token;

pub use self::mesh::join_mesh;
pub use self::pipelines_token::add_pipelines_token;

#[cfg(test)]
mod tests;
