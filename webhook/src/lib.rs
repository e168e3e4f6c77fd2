//! istio-aux: lets pods with an Istio sidecar start after their proxy and complete.
//!
//! [`inject`] decides, as pure functions over a pod; [`review`] speaks the admission API; [`serve`] listens.

#![forbid(unsafe_code)]

mod causes;
pub mod cli;
pub mod inject;
pub mod metrics;
pub mod review;
pub mod serve;
