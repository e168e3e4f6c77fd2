//! What a Kubeflow tenant needs beside its pods: `istio-aux tenancy` keeps a few objects in each namespace that asks for it.
//!
//! `wish` reads a namespace, `objects` says what it should have, and `plan` what to do about the difference. These three are
//! pure. `cluster` reads and writes, `controller` watches, `election` lets one of several replicas act.

mod cluster;
mod controller;
mod election;
mod metrics;
mod objects;
mod plan;
mod wish;

pub(crate) use self::cluster::{CLUSTER_ROLES, is_gone};
pub(crate) use self::controller::{Duties, Options, run};
#[cfg(test)]
pub(crate) use self::metrics::TenancyMetrics;
pub(crate) use self::objects::{POD_DEFAULTS, ROLE_BINDING_NAME, ROLE_BINDINGS, is_ours, pod_default, role_binding};
pub(crate) use self::plan::Notice;
pub(crate) use self::wish::{Map, Wish, accounts_of, unknown_values, wish};
