//! How soon many pods start that are created at once, and how much memory each takes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use e2e::config_map::{Delivery, until_delivered};
use e2e::manifests::shell;
use e2e::{Namespace, PodView, scenario};
use futures::StreamExt;

use crate::pod_ends::{CONFIG_MAP, Kind, chosen};
use crate::timing::{Summary, printed_uptimes, quantile, uptime};

/// The payloads stay until all have started.
const PAYLOAD: &str = "cat /proc/uptime; exec sleep 3600";

/// Creates so many pods at once of each of these kinds, or of all, one kind after the other.
pub(crate) async fn run(pods: usize, names: &[&str]) {
    println!(
        "| {pods} at once | creation of all → first instruction: min, median, max | memory of a pod |\n| --- | --- | --- |"
    );
    for kind in chosen(names) {
        let _delivery = (kind.name == CONFIG_MAP).then(Delivery::on);
        scenario(&format!("bench-at-once-{}", kind.name), kind.labels, async |ns: &Namespace| {
            if kind.name == CONFIG_MAP {
                until_delivered(ns).await;
            }
            println!("{}", row(ns, kind, pods).await);
        })
        .await;
    }
}

async fn row(ns: &Namespace, kind: &Kind, pods: usize) -> String {
    let began = uptime();
    let names: Vec<String> = (0..pods).map(|n| format!("pod-{n}")).collect();
    let create = names.iter().map(async |name| {
        ns.create_object(kind.pod(name, &shell("main", PAYLOAD))).await;
    });
    futures::future::join_all(create).await;
    let starts = futures::stream::iter(&names).then(async |name| {
        ns.pod_until(name, "its payload", |pod| PodView(pod).runs("main").then_some(())).await;
        printed_uptimes(ns, name, "main").await[0].saturating_sub(began)
    });
    let starts = Summary::of(starts.collect().await).expect("there are pods");
    let cgroups = pod_cgroups();
    let mut memory = Vec::new();
    for name in &names {
        let uid = ns.pod(name).await.metadata.uid.expect("a pod has a uid");
        memory.push(working_set(&cgroups[&uid]));
    }
    memory.sort_unstable();
    let memory = quantile(&memory, 500).expect("there are pods") >> 20;
    format!("| {} | {} | {memory} MiB |", kind.name, starts.cell())
}

/// The memory cgroups of the node's pods, by their uids.
fn pod_cgroups() -> HashMap<String, PathBuf> {
    // Version 1 has a hierarchy for each controller.
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let root = roots.into_iter().map(Path::new).find(|root| root.join("kubepods").is_dir()).expect("the node has pods");
    let classes = ["kubepods", "kubepods/burstable", "kubepods/besteffort"].map(|class| root.join(class));
    let entries = classes.iter().filter_map(|class| fs::read_dir(class).ok()).flatten().flatten();
    let of_pod = |path: PathBuf| Some((path.file_name()?.to_str()?.strip_prefix("pod")?.to_owned(), path.clone()));
    entries.filter_map(|entry| of_pod(entry.path())).collect()
}

/// Bytes, as the kubelet counts them: without pages of files that were not used lately.
fn working_set(cgroup: &Path) -> u64 {
    let read = |file: &str| fs::read_to_string(cgroup.join(file));
    let (usage, key) = match read("memory.current") {
        Ok(usage) => (usage, "inactive_file "),
        Err(_) => (read("memory.usage_in_bytes").expect("the pod has a cgroup"), "total_inactive_file "),
    };
    let stat = read("memory.stat").expect("the pod has a cgroup");
    let inactive = stat.lines().find_map(|line| line.strip_prefix(key)?.parse().ok()).unwrap_or(0_u64);
    usage.trim().parse::<u64>().expect("it is a number").saturating_sub(inactive)
}
