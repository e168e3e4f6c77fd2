//! The node agent: it runs the Istio proxy of each pod with runtime class `istio-aux` on the node, in the pod's network
//! namespace and below its cgroup, but not in the pod.

#![forbid(unsafe_code)]

pub mod agent;
mod api;
pub mod certificate;
pub mod containerd;
pub mod ended_counters;
pub mod error;
pub mod handler;
pub mod identities;
pub mod injector;
pub mod install;
pub mod metrics;
pub mod netns;
pub mod pod;
pub mod pod_events;
pub mod proxy;
pub mod ready;
pub mod rootfs;
pub mod sandbox;
pub mod server;
pub mod settings;
pub mod start_limiter;
pub mod status;
