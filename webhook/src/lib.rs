//! istio-aux: lets pods with an Istio sidecar start after their proxy, and complete.
//!
//! The package `inject` decides, as pure functions over a pod, and speaks the admission API. Here [`serve`] listens for reviews,
//! [`offline`] does the same to manifests without a cluster, and [`cli`] is the command line. `tenancy` is a controller of its own,
//! with an account of its own, which also does what `delivery` decides.

#![forbid(unsafe_code)]

mod api;
mod causes;
mod certificates;
mod check;
pub mod cli;
mod delivery;
mod explain;
mod finish;
mod installation;
pub mod metrics;
pub mod offline;
mod policy;
pub mod serve;
mod server_version;
mod stuck;
mod support_bundle;
mod tenancy;
