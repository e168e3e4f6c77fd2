//! How soon many pods start that are created at once, and how much memory each takes.

use e2e::config_map::{Delivery, until_delivered};
use e2e::{Namespace, PodView, scenario};
use futures::StreamExt;

use crate::cgroup;
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
        ns.create_object(kind.pod(name, PAYLOAD)).await;
    });
    futures::future::join_all(create).await;
    let starts = futures::stream::iter(&names).then(async |name| {
        ns.pod_until(name, "its payload", |pod| PodView(pod).runs("main").then_some(())).await;
        printed_uptimes(ns, name, "main").await[0].saturating_sub(began)
    });
    let starts = Summary::of(starts.collect().await).expect("there are pods");
    let mut memory = Vec::new();
    for name in &names {
        let uid = ns.pod(name).await.metadata.uid.expect("a pod has a uid");
        memory.push(cgroup::memory(&uid).expect("the pod has a cgroup"));
    }
    memory.sort_unstable();
    let memory = quantile(&memory, 500).expect("there are pods") >> 20;
    format!("| {} | {} | {memory} MiB |", kind.name, starts.cell())
}
