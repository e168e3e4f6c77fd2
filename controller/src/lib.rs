//! Keeps a few objects in each namespace that asks for them, for Kubeflow's tenants.
//!
//! `inject::tenancy` reads a namespace and returns the objects that it should have. Here `plan` decides what to do about the
//! difference, `cluster` reads and writes, `controller` watches, and `election` lets one of several replicas act.

#![forbid(unsafe_code)]

mod args;
mod cluster;
mod controller;
mod election;
pub mod metrics;
mod plan;

pub use self::args::ControllerArgs;
