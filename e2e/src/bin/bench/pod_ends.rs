//! How soon a pod's payload starts, and how soon after its exit the pod has succeeded.

use std::time::Duration;

use contract::names::MODE_ANNOTATION;
use e2e::cluster::{Label, MESH, OPT_IN};
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};

/// A way of running a pod.
struct Kind {
    name: &'static str,
    labels: &'static [Label],
    annotation: Option<(&'static str, &'static str)>,
    /// Whether it ends by itself.
    ends: bool,
}

const KINDS: [Kind; 5] = [
    Kind { name: "no-mesh", labels: &[], annotation: None, ends: true },
    Kind { name: "mesh-with-hold", labels: &[MESH, OPT_IN], annotation: Some((MODE_ANNOTATION, "hold")), ends: false },
    Kind {
        name: "istio-native-sidecar",
        labels: &[MESH],
        annotation: Some(("sidecar.istio.io/nativeSidecar", "true")),
        ends: true,
    },
    Kind {
        name: "istio-aux-native",
        labels: &[MESH, OPT_IN],
        annotation: Some((MODE_ANNOTATION, "native")),
        ends: true,
    },
    Kind { name: "istio-aux-proxy", labels: &[MESH, OPT_IN], annotation: Some((MODE_ANNOTATION, "proxy")), ends: true },
];

/// What one pod took: creation to its payload's first instruction, and payload's last to Succeeded.
struct Took {
    start: Duration,
    end: Option<Duration>,
}

/// Runs so many rounds of a pod of each of these kinds, or of all, and says how long they took.
pub(crate) async fn run(rounds: usize, names: &[&str]) {
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| names.is_empty() || names.contains(&kind.name)).collect();
    let mut took: Vec<Vec<Took>> = kinds.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        // Interleaved, one pod at a time: what disturbs the machine disturbs all kinds alike.
        for (kind, took) in kinds.iter().zip(&mut took) {
            scenario(&format!("bench-{}", kind.name), kind.labels, async |ns: &Namespace| {
                took.push(time_pod(ns, kind, phase(round)).await);
            })
            .await;
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    for (kind, took) in kinds.iter().zip(&took) {
        let starts = spread(took.iter().map(|took| took.start).collect());
        let ends: Vec<Duration> = took.iter().filter_map(|took| took.end).collect();
        let ends = if ends.is_empty() { "never".to_owned() } else { spread(ends) };
        println!("{:<20} n={rounds}  creation to payload {starts}  payload's exit to Succeeded {ends}", kind.name);
    }
}

/// A fraction of a second, other in each round. The kubelet looks at its containers once a second, and starts a pod's
/// containers at such a look: payloads of the same length would all end at the same moment between two looks.
fn phase(round: usize) -> f64 {
    // The golden ratio's multiples spread evenly, however many there are.
    (f64::from(u32::try_from(round).unwrap_or_default()) * 0.618_034).fract()
}

async fn time_pod(ns: &Namespace, kind: &Kind, phase: f64) -> Took {
    // The payload says when it began and when it is about to end, by the machine's clock: this runs on the node.
    let main = shell("main", &format!("cat /proc/uptime; sleep {:.3}; exec cat /proc/uptime", 1.0 + phase));
    let mut object = pod("one", &pod_spec("Never", &[main]));
    if let Some((key, value)) = kind.annotation {
        object = annotated(object, key, value);
    }
    let created = uptime_now();
    ns.create_object(object).await;
    if kind.ends {
        ns.pod_until("one", "success", |pod| (PodView(pod).phase() == "Succeeded").then_some(())).await;
    } else {
        ns.pod_until("one", "its payload's end", |pod| PodView(pod).exit_code("main")).await;
    }
    let succeeded = uptime_now();
    let log = ns.logs("one", "main").await;
    let times: Vec<Duration> = log.lines().map(uptime_in).collect();
    Took { start: times[0].saturating_sub(created), end: kind.ends.then(|| succeeded.saturating_sub(times[1])) }
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
