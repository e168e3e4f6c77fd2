//! Many pods whose payload ends at once: the shim misses none of them for good.

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{container, pod, pod_spec};
use e2e::{Namespace, scenario};
use futures::StreamExt;
use std::time::{Duration, Instant};

const PODS: usize = 50;
/// Two cores boot no more proxies within the 60 s after which hold gives up.
const AT_ONCE: usize = 10;
/// The seconds of a pod whose shim has missed its payload and waits for it still, for bench/README.md.
const SLOW: u64 = 30;

#[tokio::test]
async fn instant_payloads_are_never_lost() {
    scenario("burst", &[MESH, OPT_IN], async |ns: &Namespace| {
        let spec = pod_spec("Never", &[container("main", &["true"])]);
        let run = async |n: usize| {
            let began = Instant::now();
            let end = ns.run_pod(pod(&format!("true-{n}"), &spec)).await;
            (end, began.elapsed())
        };
        let pods = futures::stream::iter((0..PODS).map(run));
        let (ends, took): (Vec<(String, i32)>, Vec<Duration>) = pods.buffer_unordered(AT_ONCE).unzip().await;
        let succeeded = ends.iter().filter(|(phase, _)| phase == "Succeeded").count();
        let restarts: i32 = ends.iter().map(|(_, restarts)| restarts).sum();
        let slow = took.iter().filter(|took| took.as_secs() >= SLOW).count();
        println!("{succeeded} of {PODS} pods succeeded, their shims were restarted {restarts} times, {slow} took {SLOW} s or more");
        assert_eq!(succeeded, PODS, "{ends:?}");
    })
    .await;
}
