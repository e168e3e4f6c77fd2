//! Many pods with proxies beside them: they come and go while the agent is killed and containerd restarted, or start all at once. None
//! is stuck, and no proxy is left on the node.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use contract::names::NODE_RUNTIME_CLASS;
use e2e::cluster::{BESIDE, restart};
use e2e::command::in_background;
use e2e::manifests::{job, pod, pod_spec, shell};
use e2e::node::{self, kill_agent};
use e2e::{LOST, Namespace, PodView, has_condition, scenario};
use futures::{StreamExt, stream};
use serde_json::json;
use tokio::time::sleep;

const PODS: u32 = 200;
const AT_A_TIME: usize = 12;
const LIMIT: Duration = Duration::from_mins(15);
const BETWEEN_DISTURBANCES: Duration = Duration::from_secs(15);

/// Returns numbers that look random, the same in each run.
fn scattered(number: u32) -> u32 {
    number.wrapping_mul(2_654_435_761) >> 16
}

/// Creates a pod, and deletes it after its end, or, one of two, after some seconds.
async fn come_and_go(ns: &Namespace, number: u32, created: &AtomicU32, lost: &AtomicU32) {
    let name = format!("pod-{number}");
    let chance = scattered(number);
    let main = shell("main", &format!("sleep {}", chance % 4));
    let pod = ns.create_object(pod(&name, &pod_spec("Never", &[main]))).await;
    assert_eq!(pod["spec"]["runtimeClassName"], NODE_RUNTIME_CLASS, "{name}");
    created.fetch_add(1, Ordering::Relaxed);
    if chance & 16 == 0 {
        let ended = async || PodView(&ns.pod(&name).await).final_phase();
        let phase = ns.until_within(LIMIT, &format!("the end of {name}"), ended).await;
        if phase == "Failed" {
            // A restart of containerd loses a container that starts meanwhile, in any pod.
            assert_eq!(PodView(&ns.pod(&name).await).exit_code("main"), Some(LOST), "{name}");
            lost.fetch_add(1, Ordering::Relaxed);
        }
    } else {
        sleep(Duration::from_millis(u64::from(chance % 8000))).await;
    }
    ns.delete_pod(&name).await;
    ns.until_within(LIMIT, &format!("{name} to go"), async || (!ns.has_pod(&name).await).then_some(())).await;
}

/// Kills the agent or restarts containerd until all pods are created. Returns how often, and when the last time was over.
async fn disturb(created: &AtomicU32) -> (u32, Instant) {
    let (mut count, mut since) = (0, Instant::now());
    loop {
        sleep(BETWEEN_DISTURBANCES).await;
        if created.load(Ordering::Relaxed) == PODS {
            return (count, since);
        }
        let disturbance = if scattered(count).is_multiple_of(2) { kill_agent } else { || restart("containerd") };
        in_background(disturbance).await;
        (count, since) = (count + 1, Instant::now());
    }
}

#[tokio::test]
async fn disturbed_agent_leaves_no_stuck_pod_and_no_proxy() {
    let ns = &scenario("node-load", &[BESIDE]).await;
    let (began, created, lost) = (Instant::now(), AtomicU32::new(0), AtomicU32::new(0));
    let pods = stream::iter(0..PODS).map(|number| come_and_go(ns, number, &created, &lost));
    let pods = pods.buffer_unordered(AT_A_TIME).collect::<Vec<()>>();
    let (_, (count, since)) = tokio::join!(pods, disturb(&created));
    println!(
        "{PODS} pods in {:?}, {} lost by containerd, {count} disturbances; all were gone {:?} after the last",
        began.elapsed(),
        lost.load(Ordering::Relaxed),
        since.elapsed()
    );
    assert!(count >= 4, "only {count} disturbances");
    ns.until("the node as it was", async || node::proxies().is_empty().then_some(())).await;
}

/// Returns how many lines of the agent's log have this text.
fn said(text: &str) -> usize {
    node::agent_log().lines().filter(|line| line.contains(text)).count()
}

#[tokio::test]
async fn two_hundred_starts_at_once_are_each_made_once() {
    let ns = &scenario("node-at-once", &[BESIDE]).await;
    let events = ["event=Add from=Absent", "event=Started", "event=StartFailed"];
    let before = events.map(said);
    let mut all = job("all", &pod_spec("Never", &[shell("main", "true")]));
    for field in ["parallelism", "completions"] {
        all["spec"][field] = json!(PODS);
    }
    let began = Instant::now();
    ns.create_object(all.clone()).await;
    ns.until_within(LIMIT, "the Job's completion", async || {
        has_condition(&ns.get(&all).await, "Complete").then_some(())
    })
    .await;
    println!("{PODS} pods that were created at once had ended after {:?}", began.elapsed());
    let [wanted, started, failed] = std::array::from_fn(|index| said(events[index]) - before[index]);
    assert_eq!((wanted, started, failed), (PODS as usize, PODS as usize, 0));
    ns.delete(&all).await;
    ns.until_within(LIMIT, "the node as it was", async || node::proxies().is_empty().then_some(())).await;
}
