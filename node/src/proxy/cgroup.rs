//! The pod's cgroup, which contains its proxy's. containerd 1.6 does not pass it to plugins, so it is looked for.

use std::path::Path;

use cni::protocol::Sandbox;

use crate::error::{Context, Result};

/// Returns the pod's cgroup as the runtime names it. Fails if it does not exist, since the OCI runtime would create it.
pub(super) fn of_pod(cgroups: &Path, sandbox: &Sandbox, qos_class: &str) -> Result<String> {
    let paths = match sandbox.cgroup_path.as_str() {
        "" => by_kubelet(&sandbox.uid, qos_class),
        path => vec![path.to_owned()],
    };
    // Version 2 has one hierarchy, version 1 one for each controller.
    let hierarchies = [cgroups.to_owned(), cgroups.join("memory")];
    let is_there =
        |path: &&String| hierarchies.iter().any(|hierarchy| hierarchy.join(path.trim_start_matches('/')).is_dir());
    let found = paths.iter().find(is_there).cloned();
    found.context(format_args!("the pod has no cgroup {}", paths.join(" or ")))
}

/// Returns true for cgroups of version 2.
pub(super) fn are_unified(cgroups: &Path) -> bool {
    cgroups.join("cgroup.controllers").exists()
}

/// Returns the kubelet's name with `cgroupDriver: cgroupfs`, and that with `systemd`, where the name of a slice begins with its
/// parents' names.
fn by_kubelet(uid: &str, qos_class: &str) -> Vec<String> {
    let slice = format!("pod{}.slice", uid.replace('-', "_"));
    match qos_class.to_lowercase().as_str() {
        class @ ("burstable" | "besteffort") => vec![
            format!("/kubepods/{class}/pod{uid}"),
            format!("/kubepods.slice/kubepods-{class}.slice/kubepods-{class}-{slice}"),
        ],
        _ => vec![format!("/kubepods/pod{uid}"), format!("/kubepods.slice/kubepods-{slice}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(cgroup_path: &str) -> Sandbox {
        Sandbox { uid: "1-2".into(), cgroup_path: cgroup_path.into(), ..Sandbox::default() }
    }

    #[test]
    fn cgroup_of_either_driver_is_found() {
        for (path, class) in [
            ("kubepods/pod1-2", "Guaranteed"),
            ("kubepods/burstable/pod1-2", "Burstable"),
            ("memory/kubepods/besteffort/pod1-2", "BestEffort"),
            ("kubepods.slice/kubepods-pod1_2.slice", "Guaranteed"),
            ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice", "Burstable"),
        ] {
            let cgroups = tempfile::tempdir().unwrap();
            let error = of_pod(cgroups.path(), &sandbox(""), class).unwrap_err().to_string();
            assert!(error.starts_with("the pod has no cgroup /kubepods/"), "{error}");
            std::fs::create_dir_all(cgroups.path().join(path)).unwrap();
            let expected = format!("/{}", path.trim_start_matches("memory/"));
            assert_eq!(of_pod(cgroups.path(), &sandbox(""), class), Ok(expected));
        }
    }

    #[test]
    fn missing_cgroup_that_runtime_names_is_an_error() {
        let cgroups = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(cgroups.path().join("kubepods/pod1-2")).unwrap();
        let error = of_pod(cgroups.path(), &sandbox("/other/pod1-2"), "Guaranteed").unwrap_err().to_string();
        assert_eq!(error, "the pod has no cgroup /other/pod1-2");
    }
}
