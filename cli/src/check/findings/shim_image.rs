//! Reports pods whose node cannot pull the shim's image.

use super::super::finding::{Finding, Id};
use super::some;
use crate::pods::UnpulledShim;

pub(super) fn of(unpulled: &[UnpulledShim]) -> Option<Finding> {
    let UnpulledShim { image, reason, .. } = unpulled.first()?;
    let names: Vec<&str> = unpulled.iter().map(|pod| pod.pod.as_str()).collect();
    Some(Finding::problem(
        Id::ShimImage,
        format!("pods wait for the shim's image {image} ({reason}): {}", some(&names)),
        "install with an image that the nodes can pull (--shim-image, by Helm image.registry), and create the pods again",
    ))
}
