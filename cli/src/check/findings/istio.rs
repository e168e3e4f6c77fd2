//! How Istio injects its proxy, and what delays the proxy's start.

use serde_json::Value;

use super::super::finding::{Finding, Id};
use super::super::snapshot::Snapshot;
use super::{items, name, text};

/// istiod's variable for native sidecars.
const NATIVE_SIDECARS_VARIABLE: &str = "ENABLE_NATIVE_SIDECARS";
/// The proxy's variable for the cloud that it runs in. Without it, pilot-agent asks the metadata servers of clouds.
const PLATFORM_VARIABLE: &str = "CLOUD_PLATFORM";
/// Schemes of a node's `providerID` that belong to no cloud.
const LOCAL_PROVIDERS: [&str; 3] = ["kind://", "k3s://", "minikube://"];
/// Parts of kernel names that clouds build.
const CLOUD_KERNELS: [&str; 6] = ["aws", "amzn", "azure", "gcp", "gke", "oracle"];

pub(super) fn of(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> = snapshot.istiods.iter().map(native_sidecars).collect();
    let (classic, native) = (snapshot.pods.classic, snapshot.pods.native);
    if classic + native > 0 {
        let message =
            format!("pods in the mesh: {classic} with an ordinary istio-proxy, {native} with a native sidecar");
        findings.push(Finding::ok(Id::MeshPods, message));
    }
    findings.extend(metadata_server(snapshot));
    findings
}

fn native_sidecars(istiod: &Value) -> Finding {
    let containers = items(&istiod["spec"]["template"]["spec"]["containers"]);
    let mut variables = containers.flat_map(|container| items(&container["env"]));
    let variable = variables.find(|variable| text(variable, "/name") == NATIVE_SIDECARS_VARIABLE);
    let place = format!("{}/{}", text(istiod, "/metadata/namespace"), name(istiod));
    match variable.map(|variable| text(variable, "/value")) {
        Some("true") => {
            let variable = NATIVE_SIDECARS_VARIABLE;
            let message = format!("{place} makes its proxies native sidecars ({variable}): such pods need no shim");
            Finding::info(Id::NativeSidecars, message)
        }
        Some(_) => {
            let variable = NATIVE_SIDECARS_VARIABLE;
            Finding::ok(
                Id::NativeSidecars,
                format!("{place} makes its proxies ordinary containers ({variable} is off)"),
            )
        }
        None => Finding::ok(
            Id::NativeSidecars,
            format!("{place} decides by itself whether its proxies are native sidecars"),
        ),
    }
}

/// A hint where proxies wait at each start for a metadata server that no node has. Silent where that is not known.
fn metadata_server(snapshot: &Snapshot) -> Option<Finding> {
    if snapshot.mesh_configs.is_empty() || snapshot.nodes.is_empty() || !snapshot.nodes.iter().all(is_outside_clouds) {
        return None;
    }
    if snapshot.mesh_configs.iter().all(|config| names_platform(config) != Some(false)) {
        return None;
    }
    let message = "no node is in a known cloud, and the mesh configuration does not say so: each istio-proxy may wait \
                   for a cloud's metadata server when it starts (measured: 1.8 s)";
    let remediation = format!("set {PLATFORM_VARIABLE}: none in meshConfig.defaultConfig.proxyMetadata");
    Some(Finding::info(Id::MetadataServer, message).with_remediation(remediation))
}

/// Whether nothing in a node's object points to a cloud.
fn is_outside_clouds(node: &Value) -> bool {
    let provider = text(node, "/spec/providerID");
    let is_local = provider.is_empty() || LOCAL_PROVIDERS.iter().any(|scheme| provider.starts_with(scheme));
    let kernel = text(node, "/status/nodeInfo/kernelVersion");
    // EC2's virtual machines have such UUIDs.
    let is_ec2 = text(node, "/status/nodeInfo/systemUUID").to_ascii_lowercase().starts_with("ec2");
    is_local && !is_ec2 && !CLOUD_KERNELS.iter().any(|cloud| kernel.contains(cloud))
}

/// Whether a mesh configuration sets the platform; `None` where it cannot be read.
fn names_platform(config: &str) -> Option<bool> {
    let config: Value = serde_saphyr::from_str(config).ok()?;
    Some(!config["defaultConfig"]["proxyMetadata"][PLATFORM_VARIABLE].is_null())
}
