//! Checks a cluster, explains decisions, injects manifests without a cluster, and ends stuck pods.
//!
//! `inject` decides; `check` and `explain` read a cluster with the caller's own rights; [`offline`] changes manifests; they
//! share `pods` and `read`.

#![forbid(unsafe_code)]

mod check;
pub mod commands;
mod completion;
mod dry_run;
mod explain;
mod finish;
mod installation;
pub mod offline;
mod pods;
mod policy;
mod proxies;
mod read;
mod support_bundle;
mod text;
mod uninstall;
