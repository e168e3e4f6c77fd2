//! The containers that the proxy must outlive: all but the proxy, or those that the pod names.

use std::collections::HashSet;

use contract::names::WAIT_FOR_ANNOTATION;

use super::warnings::{Names, Warnings};
use crate::facts::Facts;
use crate::facts::pod::Container;

/// Returns the containers to wait for, by a pod's annotation. Unknown names cause a warning; where no name is left, all
/// containers are awaited.
pub(super) fn awaited<'p>(facts: &Facts<'p>, warnings: &mut Warnings) -> Vec<&'p Container> {
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
    let is_awaited = |container: &&Container| known.is_empty() || known.contains(container.name.as_str());
    facts.payload.iter().copied().filter(is_awaited).collect()
}
