//! What the scenarios share: a namespace of their own on a real cluster, pods in it, and waiting for conditions.
//! Everything here panics where the cluster does not do what it is asked, since that is a scenario's failure.

#![forbid(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a panic is how a scenario fails")]

pub mod admission;
pub mod audit;
pub mod cluster;
pub mod command;
pub mod config_map;
pub mod kubeflow;
pub mod manifests;
pub mod node;
pub mod observe;
pub mod policies;
pub mod rendered;
pub mod rights;
pub mod tenancy;
pub mod ways;

pub use cluster::{Namespace, scenario};
pub use observe::{LOST, PodView, has_condition, is_complete};
