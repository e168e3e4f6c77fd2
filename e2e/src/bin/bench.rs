//! What is measured on the cluster: how soon a pod ends after its payload, and whether any of many pods is missed.
//! `bench/README.md` has the commands and the last results.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use contract::names::SHIM_CONTAINER;
use e2e::cluster::{Label, MESH, OPT_IN};
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};
use futures::StreamExt;

const USAGE: &str = "usage: bench pod-ends ROUNDS | bench many-pods PODS AT-ONCE";

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match (words.as_slice(), numbers(&words)) {
        (["pod-ends", _], Some(numbers)) => pod_ends(numbers[0]).await,
        (["many-pods", _, _], Some(numbers)) => many_pods(numbers[0], numbers[1]).await,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// The arguments after the first, all of them numbers above 0.
fn numbers(words: &[&str]) -> Option<Vec<usize>> {
    let parsed = words.iter().skip(1).map(|word| word.parse().ok().filter(|&number| number > 0));
    parsed.collect()
}

/// A way of running a pod.
struct Kind {
    name: &'static str,
    labels: &'static [Label],
    native_proxy: bool,
}

const KINDS: [Kind; 3] = [
    Kind { name: "no-mesh", labels: &[], native_proxy: false },
    Kind { name: "istio-native-sidecar", labels: &[MESH], native_proxy: true },
    Kind { name: "istio-aux-native", labels: &[MESH, OPT_IN], native_proxy: false },
];

/// What one pod took: creation to its payload's first instruction, and payload's last to Succeeded.
struct Took {
    start: Duration,
    end: Duration,
}

async fn pod_ends(rounds: usize) {
    let mut took: [Vec<Took>; KINDS.len()] = Default::default();
    for round in 0..rounds {
        // Interleaved, one pod at a time: what disturbs the machine disturbs all kinds alike.
        for (kind, took) in KINDS.iter().zip(&mut took) {
            scenario(&format!("bench-{}", kind.name), kind.labels, async |ns: &Namespace| {
                took.push(time_pod(ns, kind).await);
            })
            .await;
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    for (kind, took) in KINDS.iter().zip(&took) {
        let starts = took.iter().map(|took| took.start).collect();
        let ends = took.iter().map(|took| took.end).collect();
        println!(
            "{:<22} n={rounds}  creation to payload {}  payload's exit to Succeeded {}",
            kind.name,
            spread(starts),
            spread(ends)
        );
    }
}

async fn time_pod(ns: &Namespace, kind: &Kind) -> Took {
    // The payload says when it began and when it is about to end, by the machine's clock: this runs on the node.
    let main = shell("main", "cat /proc/uptime; sleep 2; exec cat /proc/uptime");
    let mut object = pod("one", &pod_spec("Never", &[main]));
    if kind.native_proxy {
        object = annotated(object, "sidecar.istio.io/nativeSidecar", "true");
    }
    let created = uptime_now();
    ns.create_object(object).await;
    ns.pod_until("one", "success", |pod| (PodView(pod).phase() == "Succeeded").then_some(())).await;
    let succeeded = uptime_now();
    let log = ns.logs("one", "main").await;
    let times: Vec<Duration> = log.lines().map(uptime_in).collect();
    Took { start: times[0].saturating_sub(created), end: succeeded.saturating_sub(times[1]) }
}

fn uptime_now() -> Duration {
    uptime_in(&std::fs::read_to_string("/proc/uptime").expect("Linux has /proc/uptime"))
}

/// Seconds since boot, of which the kernel tells hundredths.
fn uptime_in(line: &str) -> Duration {
    let seconds = line.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_secs_f64(seconds.expect("the first number is the uptime"))
}

/// Minimum, median and maximum, in seconds.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let second = |at: usize| times[at].as_secs_f64();
    format!("min {:.2} s median {:.2} s max {:.2} s", second(0), second(times.len() / 2), second(times.len() - 1))
}

async fn many_pods(pods: usize, at_once: usize) {
    let began = Instant::now();
    scenario("bench-many", &[MESH, OPT_IN], async |ns: &Namespace| {
        let runs = futures::stream::iter((0..pods).map(|n| run_one(ns, n)));
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

/// One pod, of `true` or of one second. Returns its final phase and how often its shim was started again.
async fn run_one(ns: &Namespace, n: usize) -> (String, i32) {
    let name = format!("pod-{n}");
    let script = if n.is_multiple_of(2) { "true" } else { "sleep 1" };
    let main = e2e::manifests::container("main", &script.split(' ').collect::<Vec<_>>());
    ns.create_object(pod(&name, &pod_spec("Never", &[main]))).await;
    let phase = ns.pod_until(&name, "the end", |pod| PodView(pod).final_phase()).await;
    let restarts = PodView(&ns.pod(&name).await).restarts(SHIM_CONTAINER).unwrap_or_default();
    ns.delete_pod(&name).await;
    (phase, restarts)
}
