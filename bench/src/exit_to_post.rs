//! Measures how soon after its payload's exit the proxy is asked to quit, in containers of a pod. Payload and proxy are both
//! `bench/probe`, which logs when it exits or is asked. On the one-node cluster only, from whose disk the pods take it.

use std::path::PathBuf;
use std::time::Duration;

use contract::names::{MODE_ANNOTATION, PROXY_CONTAINER};
use e2e::cluster::OPT_IN;
use e2e::manifests::{annotated, container, injected, pod, pod_spec};
use e2e::{Namespace, scenario};
use serde_json::{Value, json};

/// Is longer than a pod usually takes until its payload's end.
const ENDS_WITHIN: Duration = Duration::from_millis(1800);

/// Returns the directory in which the probe was built.
fn probe_folder() -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/x86_64-unknown-linux-musl/release");
    std::fs::canonicalize(folder).expect("the probe was built: see the Makefile's target bench")
}

/// Lists modes and restart policies. Under `OnFailure` the exit code decides, which the kernel tells after the reaping.
const KINDS: [(&str, &str); 3] = [("native", "Never"), ("native", "OnFailure"), ("status", "OnFailure")];

/// Runs so many rounds of a pod of each kind, and prints how long they took.
pub(crate) async fn run(rounds: usize) {
    let mut took: [Vec<i64>; KINDS.len()] = Default::default();
    let ns = &scenario("bench-post", &[OPT_IN]).await;
    for round in 0..rounds {
        // Interleaved, one pod at a time: what disturbs the machine disturbs all kinds alike.
        for (kind, ((mode, policy), took)) in KINDS.iter().zip(&mut took).enumerate() {
            took.push(time_post(ns, &format!("pod-{round}-{kind}"), mode, policy).await);
        }
        if (round + 1) % 10 == 0 {
            eprintln!("round {} of {rounds}", round + 1);
        }
    }
    for ((mode, policy), mut took) in KINDS.iter().zip(took) {
        took.sort_unstable();
        let [min, median, p90, max] = [0, took.len() / 2, took.len() * 9 / 10, took.len() - 1].map(|at| took[at]);
        println!(
            "{:<18} n={rounds}  payload's exit to the first byte of POST: min {min} µs median {median} µs p90 {p90} µs max {max} µs",
            format!("{mode}, {policy}"),
        );
    }
}

/// Returns the microseconds between the payload's last instruction and the first byte of the request.
async fn time_post(ns: &Namespace, name: &str, mode: &str, policy: &str) -> i64 {
    let probe = |name: &str, role: &str| -> Value {
        let mut container = container(name, &["/probe/probe", role]);
        container["volumeMounts"] = json!([{"name": "probe", "mountPath": "/probe", "readOnly": true}]);
        container
    };
    let mut spec = pod_spec(policy, &[probe(PROXY_CONTAINER, "agent"), probe("main", "payload")]);
    spec["volumes"] = json!([{"name": "probe", "hostPath": {"path": probe_folder(), "type": "Directory"}}]);
    ns.create_object(injected(annotated(pod(name, &spec), MODE_ANNOTATION, mode))).await;
    // The machine is idle at the payload's end: logs are read after it, and the pod before has gone.
    tokio::time::sleep(ENDS_WITHIN).await;
    let number = async |container| ns.until(container, async || number(&ns.try_logs(name, container).await?)).await;
    let (asked, exit) = (number(PROXY_CONTAINER).await, number("main").await);
    ns.delete_pod(name).await;
    ns.until_gone(name).await;
    (asked - exit) / 1000
}

/// Finds the line of a log that is a number.
fn number(log: &str) -> Option<i64> {
    log.lines().find_map(|line| line.parse().ok())
}
