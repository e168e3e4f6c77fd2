//! Reads what a pod's cgroup of version 1 or 2 has used, by the kubelet's driver `cgroupfs`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Reads its memory in bytes, as the kubelet counts them: without pages of files that were not used lately. `None` where the pod has gone.
pub(crate) fn memory(uid: &str) -> Option<u64> {
    let cgroup = cgroup("memory", uid)?;
    let read = |file: &str| fs::read_to_string(cgroup.join(file)).ok();
    let (usage, key) = match read("memory.current") {
        Some(usage) => (usage, "inactive_file "),
        None => (read("memory.usage_in_bytes")?, "total_inactive_file "),
    };
    Some(usage.trim().parse::<u64>().ok()?.saturating_sub(field(&read("memory.stat")?, key)?))
}

/// Reads what all its containers have used of the processors. `None` where the pod has gone.
pub(crate) fn cpu(uid: &str) -> Option<Duration> {
    let cgroup = cgroup("cpuacct", uid)?;
    match fs::read_to_string(cgroup.join("cpuacct.usage")) {
        Ok(usage) => Some(Duration::from_nanos(usage.trim().parse().ok()?)),
        Err(_) => {
            Some(Duration::from_micros(field(&fs::read_to_string(cgroup.join("cpu.stat")).ok()?, "usage_usec ")?))
        }
    }
}

fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.parse().ok())
}

/// Finds a pod's cgroup. Version 1 has a hierarchy for each controller.
fn cgroup(controller: &str, uid: &str) -> Option<PathBuf> {
    let roots = [format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup".to_owned()];
    let of_root = |root: &String| {
        let of_class = |class: &str| PathBuf::from(format!("{root}/kubepods/{class}pod{uid}"));
        ["", "burstable/", "besteffort/"].map(of_class).into_iter().find(|folder| folder.is_dir())
    };
    roots.iter().find_map(of_root)
}
