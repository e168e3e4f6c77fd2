//! The pod's cgroup, below which its proxy's is. containerd 1.6 does not tell plugins about it.

use std::path::Path;

use cni::protocol::Sandbox;

/// The pod's cgroup as the runtime names it. It must be there: the OCI runtime would make any.
pub(super) fn of_pod(cgroups: &Path, sandbox: &Sandbox, qos_class: &str) -> Result<String, String> {
    let path =
        if sandbox.cgroup_path.is_empty() { by_cgroupfs(&sandbox.uid, qos_class) } else { sandbox.cgroup_path.clone() };
    // Version 2 has one hierarchy, version 1 one for each controller.
    let hierarchies = [cgroups.to_owned(), cgroups.join("memory")];
    if hierarchies.iter().any(|hierarchy| hierarchy.join(path.trim_start_matches('/')).is_dir()) {
        Ok(path)
    } else {
        Err(format!("the pod has no cgroup {path}; the kubelet's cgroupDriver must be cgroupfs"))
    }
}

/// The kubelet's name with `cgroupDriver: cgroupfs`.
fn by_cgroupfs(uid: &str, qos_class: &str) -> String {
    match qos_class {
        "Burstable" => format!("/kubepods/burstable/pod{uid}"),
        "BestEffort" => format!("/kubepods/besteffort/pod{uid}"),
        _ => format!("/kubepods/pod{uid}"),
    }
}
