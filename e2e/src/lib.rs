//! Code that the tests on a cluster share: the cluster that they may use, a namespace for each, and the objects in it.
//! Everything here panics where the cluster does not do what it is asked, since that is a test's failure.

#![forbid(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a panic is how a test fails")]
#![allow(clippy::must_use_candidate, reason = "what a program prints or an object says is not always of interest")]

pub mod admission;
pub mod audit;
pub mod clients;
pub mod cluster;
pub mod command;
pub mod context;
pub mod echo;
pub mod harness;
pub mod install_methods;
pub mod kubectl;
pub mod kubeflow;
pub mod manifests;
pub mod namespace;
pub mod node;
pub mod observe;
pub mod outage;
pub mod policies;
pub mod raised_limit;
pub mod rendered;
pub mod rights;
pub mod saved;
pub mod stand_ins;
pub mod tenancy;
pub mod webhook_option;

pub use namespace::{Namespace, scenario};
pub use observe::{Outcome, PodView, has_condition};
