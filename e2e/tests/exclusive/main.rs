//! Scenarios that have the node or the installation to themselves: `--test-threads=1`.

mod burst;
mod installation;
mod start_error;
mod unlabeled_namespace;

#[cfg(feature = "one-node")]
mod disruption;
#[cfg(feature = "one-node")]
mod image_volume;
#[cfg(feature = "one-node")]
mod openshift;
#[cfg(feature = "one-node")]
mod outage;
#[cfg(feature = "one-node")]
mod policy;
#[cfg(feature = "one-node")]
mod random_pods;
