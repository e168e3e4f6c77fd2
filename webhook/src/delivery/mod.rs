//! The shim's binary as an immutable `ConfigMap` in each namespace that opted in, and the label that lets pods mount it.
//!
//! `binary` is what is delivered, `plan` decides, `policies` judges the admission policies without which nothing is delivered.
//! These three are pure, but for reading one file. `cluster` reads and writes. `istio-aux tenancy` runs it.

mod binary;
mod cluster;
mod plan;
mod policies;

pub(crate) use self::binary::{CONFIG_MAPS, SHIM_BINARY_PATH, ShimBinary};
pub(crate) use self::cluster::Deliverer;
