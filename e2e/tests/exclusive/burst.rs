//! Many pods whose payload ends at once: the shim misses none of them for good.

use std::time::{Duration, Instant};

use contract::names::SHIM_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{container, pod, pod_spec};
use e2e::{Namespace, PodView, scenario};
use futures::{StreamExt, stream};

const PODS: usize = 50;
/// Two cores boot no more proxies within the 60 s after which hold gives up.
const AT_ONCE: usize = 10;
/// The time of a pod whose shim has missed its payload and waits for it still, for bench/README.md.
const SLOW: Duration = Duration::from_secs(30);

/// Runs a pod to its end, and deletes it. Returns its final phase, how often its shim was restarted, and how long it took. Describes
/// a pod that fails or is slow.
async fn run(ns: &Namespace, number: usize) -> (String, i32, Duration) {
    let (name, began) = (format!("true-{number}"), Instant::now());
    ns.create_object(pod(&name, &pod_spec("Never", &[container("main", &["true"])]))).await;
    let phase = ns.final_phase(&name).await;
    let (pod, took) = (ns.pod(&name).await, began.elapsed());
    if phase != "Succeeded" || took >= SLOW {
        eprintln!("{}", ns.describe_pod(&pod).await);
    }
    ns.delete_pod(&name).await;
    (phase, PodView(&pod).restarts(SHIM_CONTAINER).unwrap_or_default(), took)
}

#[tokio::test]
async fn instant_payloads_are_never_lost() {
    let ns = &scenario("burst", &[MESH, OPT_IN]).await;
    let pods = stream::iter(0..PODS).map(|number| run(ns, number));
    let ends: Vec<(String, i32, Duration)> = pods.buffer_unordered(AT_ONCE).collect().await;
    let succeeded = ends.iter().filter(|(phase, ..)| phase == "Succeeded").count();
    let restarts: i32 = ends.iter().map(|(_, restarts, _)| restarts).sum();
    let slow = ends.iter().filter(|(.., took)| *took >= SLOW).count();
    println!(
        "{succeeded} of {PODS} pods succeeded, their shims were restarted {restarts} times, {slow} took {SLOW:?} or more"
    );
    assert_eq!(succeeded, PODS, "{ends:?}");
}
