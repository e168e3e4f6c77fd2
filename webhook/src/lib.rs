//! istio-aux: lets pods with an Istio sidecar start after their proxy and complete.
//!
//! [`inject`] decides, as pure functions over a pod; [`review`] speaks the admission API; [`serve`] listens; [`offline`]
//! does the same to manifests without a cluster.

#![forbid(unsafe_code)]

mod api;
mod causes;
mod certificates;
mod check;
pub mod cli;
mod finish;
pub mod inject;
pub mod metrics;
pub mod offline;
pub mod review;
pub mod serve;
mod server_version;
mod stuck;
