//! Measures how soon a pod's payload starts, and how soon after its exit the pod has succeeded.

use std::time::Duration;

use contract::names::MODE_ANNOTATION;
use e2e::cluster::{Label, MESH, NODE_PROXY, OPT_IN, client};
use e2e::command::{printed, run as run_program};
use e2e::kubectl::wait_for_removal;
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::webhook_option::{self, WebhookOption, is_mounted};
use e2e::{Namespace, PodView, scenario};
use serde_json::Value;

use crate::cost::{Cost, Meter};
use crate::report::{Results, Times};
use crate::timing::{creation_offset, printed_uptimes, quantile, random, shuffled, sync_offset, uptime};
use crate::watch_and_exec::Controller;

/// A way of running a pod.
pub(crate) struct Kind {
    name: &'static str,
    labels: &'static [Label],
    annotations: &'static [(&'static str, &'static str)],
    /// How the pod comes to its end.
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Ends by itself.
    Own,
    /// Does not end.
    Never,
    /// Ends by its script, which waits for Istio's proxy, and has it quit.
    ByScript,
    /// Ends by a controller that has the proxy quit.
    ByController,
}

impl Kind {
    /// Returns a pod of this kind, whose only container runs a script, with the termination grace period that pods have by default.
    pub(crate) fn pod(&self, name: &str, script: &str) -> Value {
        let wrapped = WRAPPER.replace("SCRIPT", script);
        let main = shell("main", if self.end == End::ByScript { &wrapped } else { script });
        let mut spec = pod_spec("Never", &[main]);
        spec["terminationGracePeriodSeconds"] = 30.into();
        let object = pod(name, &spec);
        self.annotations.iter().fold(object, |object, (key, value)| annotated(object, key, value))
    }
}

/// Stands around a payload, as users write it. It asks as often as a compiled one.
const WRAPPER: &str = "until curl -fs -o /dev/null localhost:15021/healthz/ready; do sleep 0.1; done
(SCRIPT); code=$?
curl -fs -o /dev/null -X POST localhost:15020/quitquitquit
exit $code";

/// Has Istio's proxy come before the pod's containers.
const HOLD: (&str, &str) = ("proxy.istio.io/config", "holdApplicationUntilProxyStarts: true");
/// Asks for Istio's own native sidecar.
const NATIVE: (&str, &str) = ("sidecar.istio.io/nativeSidecar", "true");
/// Has pilot-agent end once Envoy has no connection, in place of waiting for a fixed time.
const EXIT_ON_ZERO: (&str, &str) =
    ("proxy.istio.io/config", "proxyMetadata: {EXIT_ON_ZERO_ACTIVE_CONNECTIONS: 'true'}");

/// Names the kind that needs image volumes, which are switched on for the whole run.
const IMAGE_VOLUME: &str = "istio-aux-image-volume";
/// Names the kinds that are measured with the shim copied: beside image volumes they would be something else.
const COPYING: [&str; 1] = ["istio-aux-proxy"];
/// Names the kinds that are measured only where they are named.
const ONLY_NAMED: [&str; 2] = ["mesh-without-help", COPYING[0]];

const KINDS: [Kind; 12] = [
    kind("no-mesh", &[], &[]),
    Kind { end: End::Never, ..kind("mesh-without-help", &[MESH], &[]) },
    Kind { end: End::Never, ..kind("mesh-with-hold", &[MESH], &[HOLD]) },
    Kind { end: End::ByScript, ..kind("wrapper", &[MESH], &[]) },
    Kind { end: End::ByController, ..kind("watch-and-exec", &[MESH], &[HOLD]) },
    kind("istio-native-sidecar", &[MESH], &[NATIVE]),
    kind("istio-native-exit-on-zero", &[MESH], &[NATIVE, EXIT_ON_ZERO]),
    kind("istio-aux-native", &[MESH, OPT_IN], &[(MODE_ANNOTATION, "native")]),
    kind("istio-aux-proxy", &[MESH, OPT_IN], &[(MODE_ANNOTATION, "proxy")]),
    kind("istio-aux-status", &[MESH, OPT_IN], &[(MODE_ANNOTATION, "status")]),
    kind(IMAGE_VOLUME, &[MESH, OPT_IN], &[]),
    kind("istio-aux-node", &[NODE_PROXY], &[]),
];

/// Returns a kind whose pods end by themselves.
const fn kind(
    name: &'static str,
    labels: &'static [Label],
    annotations: &'static [(&'static str, &'static str)],
) -> Kind {
    Kind { name, labels, annotations, end: End::Own }
}

/// Holds what one pod took: creation to its payload's first instruction, and payload's last to Succeeded.
struct Timing {
    start: Duration,
    end: Option<Duration>,
    cost: Cost,
}

/// Returns the kinds of these names, or those of the results that are kept.
fn chosen(names: &[&str]) -> Vec<&'static Kind> {
    if names.is_empty() {
        return KINDS.iter().filter(|kind| !ONLY_NAMED.contains(&kind.name)).collect();
    }
    let unknown = names.iter().find(|name| !KINDS.iter().any(|kind| kind.name == **name));
    assert!(unknown.is_none(), "there is no kind {unknown:?}; there are: {:?}", KINDS.map(|kind| kind.name));
    KINDS.iter().filter(|kind| names.contains(&kind.name)).collect()
}

/// Runs so many rounds of a pod of each of these kinds, or of all, and writes how long they took.
pub(crate) async fn run(rounds: usize, names: &[&str]) {
    let kinds = chosen(names);
    let has = |names: &[&str]| kinds.iter().any(|kind| names.contains(&kind.name));
    assert!(!(has(&[IMAGE_VOLUME]) && has(&COPYING)), "{IMAGE_VOLUME} needs a run without {COPYING:?}");
    let delivery = has(&[IMAGE_VOLUME]).then(|| WebhookOption::set(&[webhook_option::IMAGE_VOLUME]));
    let timings = interleaved(rounds, &kinds, time_pod).await;
    drop(delivery);
    let kinds = timings.iter().map(|(kind, timings)| Times {
        name: kind.name.to_owned(),
        starts: timings.iter().map(|timing| seconds(timing.start)).collect(),
        ends: timings.iter().filter_map(|timing| timing.end).map(seconds).collect(),
        cpu: timings.iter().map(|timing| milliseconds(timing.cost.cpu)).collect(),
        memory: timings.iter().map(|timing| timing.cost.memory >> 20).collect(),
        requests: timings.iter().map(|timing| timing.cost.requests).collect(),
        syncs: timings.iter().map(|timing| timing.cost.syncs).collect(),
    });
    let version = client().await.apiserver_version().await.expect("the API server says its version");
    let results = Results {
        command: [&["bench pod-ends", &rounds.to_string()], names].concat().join(" "),
        date: printed(&run_program("date", &["--utc", "+%F"], "")).trim().to_owned(),
        kubernetes: version.git_version.trim_start_matches('v').to_owned(),
        kinds: kinds.collect(),
    };
    println!("{}; next: bench report", results.write().display());
}

/// Returns seconds in hundredths: the clock has no more.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 100.0).round() / 100.0
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Runs rounds of a measurement of each of these kinds. Prints the least time, the median and the longest of each.
pub(crate) async fn each_in_namespace(
    rounds: usize,
    names: &[&str],
    measure: impl AsyncFn(&Namespace, &Kind, usize) -> Duration,
) {
    let mut kinds = chosen(names);
    let is_measured = |kind: &&Kind| kind.end == End::Own && kind.name != IMAGE_VOLUME;
    kinds.retain(|kind| names.contains(&kind.name) || is_measured(kind));
    assert!(kinds.iter().all(is_measured), "only kinds that end by themselves, and without {IMAGE_VOLUME}");
    for (kind, mut times) in interleaved(rounds, &kinds, measure).await {
        times.sort_unstable();
        let [min, median, max] = [times.first().copied(), quantile(&times, 500), times.last().copied()]
            .map(|time| time.expect("there is a round"));
        println!("{:<26} n={rounds}  min {min:.2?} median {median:.2?} max {max:.2?}", kind.name);
    }
}

/// Measures each kind so many times, one at a time: what disturbs the machine disturbs all kinds alike. In another order in each
/// round, so that no kind always follows the same one.
async fn interleaved<'a, T>(
    rounds: usize,
    kinds: &[&'a Kind],
    measure: impl AsyncFn(&Namespace, &Kind, usize) -> T,
) -> Vec<(&'a Kind, Vec<T>)> {
    let mut measured: Vec<_> = kinds.iter().map(|&kind| (kind, Vec::new())).collect();
    let mut next = random(1);
    for round in 0..rounds {
        for index in shuffled(kinds.len(), &mut next) {
            let kind = kinds[index];
            // What ends in one namespace is not to disturb the next.
            let ns = scenario(&format!("bench-{}", kind.name), kind.labels).await;
            measured[index].1.push(measure(&ns, kind, round).await);
            let namespace = ns.name().to_owned();
            drop(ns);
            wait_for_removal(&namespace);
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    measured
}

async fn time_pod(ns: &Namespace, kind: &Kind, round: usize) -> Timing {
    let _controller = if kind.end == End::ByController { Some(Controller::start(ns).await) } else { None };
    // The payload's last program prints the time in place of its shell.
    let script = format!("cat /proc/uptime; sleep {:.3}; exec cat /proc/uptime", 1.0 + sync_offset(round));
    let object = kind.pod("one", &script);
    tokio::time::sleep(Duration::from_secs_f64(creation_offset(round))).await;
    let meter = Meter::start().await;
    let created = uptime();
    let pod = ns.create_object(object).await;
    let uid = pod["metadata"]["uid"].as_str().expect("an object has a uid");
    if kind.name == IMAGE_VOLUME {
        assert!(is_mounted(&pod), "a replica that drains has answered");
    }
    let ends = kind.end != End::Never;
    let end = async {
        if ends {
            ns.pod_until("one", "success", |pod| (PodView(pod).phase() == "Succeeded").then_some(())).await;
        } else {
            ns.pod_until("one", "its payload's end", |pod| PodView(pod).exit_code("main")).await;
        }
        uptime()
    };
    let (succeeded, cost) = meter.until(ns, uid, end).await;
    let times = printed_uptimes(ns, "one", "main").await;
    Timing { start: times[0].saturating_sub(created), end: ends.then(|| succeeded.saturating_sub(times[1])), cost }
}
