//! Measures how soon a pod's payload runs again after it has had all of the pod's containers started again (KEP-5532).

use std::time::Duration;

use e2e::manifests::{with_memory, with_rule};

use crate::pod_ends::{Kind, each_in_namespace};
use crate::timing::{creation_offset, parse_uptime, sync_offset};

/// Runs so many rounds of a pod of each of these kinds, and prints how long it took.
pub(crate) async fn run(rounds: usize, names: &[&str]) {
    each_in_namespace(rounds, names, async |ns, kind: &Kind, round| {
        let first = format!("sleep {:.3}; cat /proc/uptime >/memory/first; exit 88", 1.0 + sync_offset(round));
        let script = format!("[ -e /memory/first ] || {{ {first}; }}; exec cat /memory/first /proc/uptime");
        let mut pod = kind.pod("one", &script);
        let main = &mut pod["spec"]["containers"][0];
        *main = with_rule(main.take(), "RestartAllContainers", 88);
        pod["spec"] = with_memory(pod["spec"].take());
        tokio::time::sleep(Duration::from_secs_f64(creation_offset(round))).await;
        ns.create_object(pod).await;
        ns.until_ended("one", "Succeeded").await;
        let log = ns.logs("one", "main").await;
        let times: Vec<_> = log.lines().filter_map(parse_uptime).collect();
        times[1].saturating_sub(times[0])
    })
    .await;
}
