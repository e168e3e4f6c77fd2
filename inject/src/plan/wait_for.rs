//! The containers that the proxy must outlive: all but the proxy, or those that the pod names.

use std::collections::HashSet;

use contract::names::WAIT_FOR_ANNOTATION;

use super::warnings::{Names, Warnings};
use crate::facts::Facts;

/// The regular containers but the proxy, split.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContainerSplit {
    /// The shim waits for these.
    pub(super) awaited: Vec<String>,
    /// The shim does not wait for these.
    pub(super) helpers: Vec<String>,
}

/// Splits a pod's containers by its annotation. Unknown names cause a warning; where no name is left, all
/// containers are awaited.
pub(super) fn split(facts: &Facts, warnings: &mut Warnings) -> ContainerSplit {
    let payload: Vec<&str> = facts.payload.iter().map(|container| container.name.as_str()).collect();
    let all: HashSet<&str> = payload.iter().copied().collect();
    let annotation = facts.pod.annotation(WAIT_FOR_ANNOTATION).unwrap_or_default();
    let list = annotation.split(',').map(str::trim).filter(|name| !name.is_empty());
    let (known, unknown): (Vec<&str>, Vec<&str>) = list.partition(|name| all.contains(name));
    let known: HashSet<&str> = known.into_iter().collect();
    if !unknown.is_empty() {
        warnings.push(format_args!(
            "{WAIT_FOR_ANNOTATION} names no container of this pod: {}; it has {}",
            Names(&unknown),
            Names(&payload)
        ));
    }
    let (awaited, helpers) =
        payload.into_iter().partition::<Vec<_>, _>(|name| known.is_empty() || known.contains(name));
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    ContainerSplit { awaited: owned(awaited), helpers: owned(helpers) }
}
