//! Measures how soon the last of many pods starts that are created at once.

use e2e::kubectl::kubectl;
use futures::future::join_all;

use crate::pod_ends::{Kind, each_in_namespace};
use crate::timing::{printed_uptimes, uptime};

/// Is the time that the slowest run may take.
const LIMIT: &str = "--timeout=10m";

/// Runs so many rounds of so many pods of each of these kinds, and prints how long it took.
pub(crate) async fn run(pods: usize, rounds: usize, names: &[&str]) {
    each_in_namespace(rounds, names, async |ns, kind: &Kind, _| {
        let names: Vec<String> = (0..pods).map(|number| format!("pod-{number}")).collect();
        let created = uptime();
        join_all(names.iter().map(|name| ns.create_object(kind.pod(name, "exec cat /proc/uptime")))).await;
        // A watch: to list 50 pods again and again takes a tenth of the machine.
        kubectl(&["-n", ns.name(), "wait", "pods", "--all", "--for=jsonpath={.status.phase}=Succeeded", LIMIT]);
        let mut last = created;
        for name in &names {
            last = last.max(printed_uptimes(ns, name, "main").await[0]);
        }
        last.saturating_sub(created)
    })
    .await;
}
