//! Judges the API server and the nodes: native sidecars, exit codes of sibling containers.

use contract::version::Version;
use serde_json::Value;

use super::super::finding::{Finding, Id};
use super::super::snapshot::Snapshot;
use super::{name, some, text};

/// Judges the API server.
pub(crate) fn server(snapshot: &Snapshot) -> Finding {
    match snapshot.server {
        Some(version) if version.has_native_sidecars() => {
            Finding::ok(Id::ServerVersion, format!("Kubernetes {version} has native sidecars"))
        }
        Some(version) => Finding::info(
            Id::ServerVersion,
            format!("Kubernetes {version} has no native sidecars: the shim becomes istio-proxy's parent (mode proxy)"),
        ),
        None => Finding::info(Id::ServerVersion, "the API server reports a version that cannot be read"),
    }
}

/// Judges the kubelets and kernels of the nodes.
pub(crate) fn nodes(snapshot: &Snapshot) -> Vec<Finding> {
    if snapshot.nodes.is_empty() {
        return Vec::new();
    }
    vec![kubelets(snapshot), kernels(snapshot)]
}

fn kubelets(snapshot: &Snapshot) -> Finding {
    let old = older(&snapshot.nodes, "kubeletVersion", |version| !version.has_native_sidecars());
    let mut settings = snapshot.webhooks.iter().filter_map(|webhook| webhook.settings.as_ref());
    let are_used =
        snapshot.server.is_none_or(Version::has_native_sidecars) && settings.all(|settings| settings.native_sidecars);
    if old.is_empty() || !are_used {
        return Finding::ok(
            Id::KubeletVersion,
            format!("{} node(s): the kubelets fit the server and the webhook", snapshot.nodes.len()),
        );
    }
    let message = format!(
        "nodes older than Kubernetes 1.29, which would run a native sidecar as an init container: {}",
        some(&old)
    );
    Finding::problem(Id::KubeletVersion, message, "give the webhook --native-sidecars=disabled until they are newer")
}

fn kernels(snapshot: &Snapshot) -> Finding {
    let old = older(&snapshot.nodes, "kernelVersion", |version| !version.reports_exit_codes());
    if old.is_empty() {
        return Finding::ok(Id::KernelVersion, "the kernels report exit codes of sibling containers");
    }
    let message = "Linux before 6.15 does not report exit codes of sibling containers: pods with restartPolicy OnFailure \
                   end by the kubelet's report, about a second later, on";
    Finding::info(Id::KernelVersion, format!("{message} {}", some(&old)))
}

/// Returns the nodes whose version in `nodeInfo` can be read and fits the predicate.
fn older<'n>(nodes: &'n [Value], field: &str, is_old: impl Fn(Version) -> bool) -> Vec<&'n str> {
    let pointer = format!("/status/nodeInfo/{field}");
    nodes.iter().filter(|node| Version::parse(text(node, &pointer)).is_some_and(&is_old)).map(name).collect()
}
