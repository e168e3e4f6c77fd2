//! Endpoints that are asked to quit before the proxy.

use contract::endpoint::Endpoint;
use contract::names::{QUIT_ANNOTATION, WAIT_FOR_ANNOTATION};

use super::Warnings;
use crate::facts::pod::Pod;

/// More endpoints than this are ignored: each is an argument of the shim.
const ENDPOINT_COUNT_LIMIT: usize = 16;

/// Returns the endpoints of the pod's annotation. Only plain HTTP on loopback is accepted.
pub(super) fn endpoints(pod: &Pod, warnings: &mut Warnings) -> Vec<Endpoint> {
    let list = pod.annotation(QUIT_ANNOTATION).unwrap_or_default();
    let mut endpoints = Vec::new();
    for url in list.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        match url.parse() {
            Ok(_) if endpoints.len() == ENDPOINT_COUNT_LIMIT => {
                warnings.push(format_args!("{QUIT_ANNOTATION}: all but the first {ENDPOINT_COUNT_LIMIT} are ignored"));
                break;
            }
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => warnings.push(format_args!("{QUIT_ANNOTATION}: {url:?} is ignored: it {error}")),
        }
    }
    if !endpoints.is_empty() && pod.annotation(WAIT_FOR_ANNOTATION).is_none() {
        warnings.push(format_args!(
            "{QUIT_ANNOTATION} without {WAIT_FOR_ANNOTATION}: the shim awaits the container to quit as well, and so never asks it"
        ));
    }
    endpoints
}
