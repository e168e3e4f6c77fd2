//! What a pod wants told to quit before its proxy.

use contract::endpoint::Endpoint;
use contract::names::{QUIT_ANNOTATION, WAIT_FOR_ANNOTATION};

use super::pod::Pod;

/// The endpoints of the pod's annotation. Anything but plain HTTP on loopback is refused.
pub(super) fn endpoints(pod: &Pod, warnings: &mut Vec<String>) -> Vec<Endpoint> {
    let list = pod.annotation(QUIT_ANNOTATION).unwrap_or_default();
    let mut endpoints = Vec::new();
    for url in list.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        match url.parse() {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => warnings.push(format!("{QUIT_ANNOTATION}: {url:?} is left out: it {error}")),
        }
    }
    if !endpoints.is_empty() && pod.annotation(WAIT_FOR_ANNOTATION).is_none() {
        warnings.push(format!(
            "{QUIT_ANNOTATION} without {WAIT_FOR_ANNOTATION}: the container that it ends is waited for, so it is never asked"
        ));
    }
    endpoints
}
