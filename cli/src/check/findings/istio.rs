//! Judges how Istio injects its proxy.

use serde_json::Value;

use super::super::finding::{Finding, Id};
use super::super::snapshot::Snapshot;
use super::{items, name, text};

/// Is istiod's variable for native sidecars.
const NATIVE_SIDECARS_VARIABLE: &str = "ENABLE_NATIVE_SIDECARS";

pub(super) fn of(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = injected_proxies(snapshot);
    let (classic, native) = (snapshot.pods.classic, snapshot.pods.native);
    if classic + native > 0 {
        let message =
            format!("pods in the mesh: {classic} with an ordinary istio-proxy, {native} with a native sidecar");
        findings.push(Finding::ok(Id::MeshPods, message));
    }
    findings
}

/// Tells which kind of proxy each control plane injects.
pub(crate) fn injected_proxies(snapshot: &Snapshot) -> Vec<Finding> {
    snapshot.istiods.iter().map(native_sidecars).collect()
}

fn native_sidecars(istiod: &Value) -> Finding {
    let containers = items(&istiod["spec"]["template"]["spec"]["containers"]);
    let mut variables = containers.flat_map(|container| items(&container["env"]));
    let variable = variables.find(|variable| text(variable, "/name") == NATIVE_SIDECARS_VARIABLE);
    let place = format!("{}/{}", text(istiod, "/metadata/namespace"), name(istiod));
    match variable.map(|variable| text(variable, "/value")) {
        Some("true") => Finding::info(
            Id::NativeSidecars,
            format!(
                "{place} makes its proxies native sidecars ({NATIVE_SIDECARS_VARIABLE}): pods that run to completion end without a shim"
            ),
        ),
        Some(value) if value != "auto" => Finding::ok(
            Id::NativeSidecars,
            format!(
                "{place} makes its proxies ordinary containers ({NATIVE_SIDECARS_VARIABLE} is off): without istio-aux, \
                 pods that run to completion hang"
            ),
        ),
        _ => Finding::ok(
            Id::NativeSidecars,
            format!(
                "{place} decides by itself whether its proxies are native sidecars (since Istio 1.27, if all nodes have \
                 Kubernetes 1.33): where they are not, pods that run to completion hang without istio-aux"
            ),
        ),
    }
}
