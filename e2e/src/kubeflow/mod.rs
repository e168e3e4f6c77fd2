//! The objects of Kubeflow's components that scenarios create, and reading their status.

pub mod argo;
pub mod katib;
pub mod torch;
