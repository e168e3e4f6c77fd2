//! Whether any of many pods is missed.

use std::time::Instant;

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{container, pod, pod_spec};
use e2e::{Namespace, scenario};
use futures::StreamExt;
use serde_json::Value;

/// Runs so many pods, so many at once, and says how they ended.
pub(crate) async fn run(pods: usize, at_once: usize) {
    let began = Instant::now();
    scenario("bench-many", &[MESH, OPT_IN], async |ns: &Namespace| {
        let runs = futures::stream::iter((0..pods).map(|n| ns.run_pod(short_pod(n))));
        let mut ends = runs.buffer_unordered(at_once);
        let (mut done, mut succeeded, mut restarts) = (0, 0, 0);
        while let Some((phase, shim_restarts)) = ends.next().await {
            done += 1;
            succeeded += usize::from(phase == "Succeeded");
            restarts += shim_restarts;
            if done % 50 == 0 {
                eprintln!("{done} of {pods} after {} s", began.elapsed().as_secs());
            }
        }
        println!(
            "{succeeded} of {pods} pods succeeded, {at_once} at a time, in {} s; their shims were started again {restarts} times",
            began.elapsed().as_secs()
        );
    })
    .await;
}

/// A pod of `true`, or of one second.
fn short_pod(n: usize) -> Value {
    let script = if n.is_multiple_of(2) { "true" } else { "sleep 1" };
    let main = container("main", &script.split(' ').collect::<Vec<_>>());
    pod(&format!("pod-{n}"), &pod_spec("Never", &[main]))
}
