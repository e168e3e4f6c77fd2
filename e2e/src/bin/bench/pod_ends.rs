//! How soon a pod's payload starts, and how soon after its exit the pod has succeeded.

use std::time::Duration;

use contract::names::{MODE_ANNOTATION, SHIM_DELIVERY_COPY, SHIM_DELIVERY_LABEL};
use e2e::cluster::{BESIDE, Label, MESH, OPT_IN, client};
use e2e::command::{printed, run as run_program};
use e2e::config_map::{Delivery, until_delivered};
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};
use serde_json::Value;

use crate::report::{Results, Times};
use crate::timing::{printed_uptimes, sync_offset, uptime};

/// A way of running a pod.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) labels: &'static [Label],
    annotation: Option<(&'static str, &'static str)>,
    /// Whether it ends by itself.
    ends: bool,
}

impl Kind {
    /// A pod of this kind, of one container.
    pub(crate) fn pod(&self, name: &str, main: &Value) -> Value {
        let object = pod(name, &pod_spec("Never", std::slice::from_ref(main)));
        self.annotation.into_iter().fold(object, |object, (key, value)| annotated(object, key, value))
    }
}

/// The kind that needs the delivery by `ConfigMap`, which is switched on for the run.
pub(crate) const CONFIG_MAP: &str = "istio-aux-config-map";
/// The kind that needs the node agent, so it runs only where it is named.
const NODE: &str = "istio-aux-node";
/// Keeps a namespace on the copy.
const COPY: Label = (SHIM_DELIVERY_LABEL, SHIM_DELIVERY_COPY);

const KINDS: [Kind; 7] = [
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
        labels: &[MESH, OPT_IN, COPY],
        annotation: Some((MODE_ANNOTATION, "native")),
        ends: true,
    },
    Kind {
        name: "istio-aux-proxy",
        labels: &[MESH, OPT_IN, COPY],
        annotation: Some((MODE_ANNOTATION, "proxy")),
        ends: true,
    },
    Kind { name: CONFIG_MAP, labels: &[MESH, OPT_IN], annotation: None, ends: true },
    Kind { name: NODE, labels: &[BESIDE], annotation: None, ends: true },
];

/// What one pod took: creation to its payload's first instruction, and payload's last to Succeeded.
struct Timing {
    start: Duration,
    end: Option<Duration>,
}

/// The kinds of these names, or all.
pub(crate) fn chosen(names: &[&str]) -> Vec<&'static Kind> {
    let is_chosen = |kind: &&Kind| names.contains(&kind.name) || (names.is_empty() && kind.name != NODE);
    KINDS.iter().filter(is_chosen).collect()
}

/// Runs so many rounds of a pod of each of these kinds, or of all, and says how long they took.
pub(crate) async fn run(rounds: usize, names: &[&str]) {
    let kinds = chosen(names);
    let mut timings: Vec<Vec<Timing>> = kinds.iter().map(|_| Vec::new()).collect();
    let delivery = kinds.iter().any(|kind| kind.name == CONFIG_MAP).then(Delivery::on);
    for round in 0..rounds {
        // Interleaved, one pod at a time: what disturbs the machine disturbs all kinds alike.
        for (kind, timings) in kinds.iter().zip(&mut timings) {
            scenario(&format!("bench-{}", kind.name), kind.labels, async |ns: &Namespace| {
                if kind.name == CONFIG_MAP {
                    until_delivered(ns).await;
                }
                timings.push(time_pod(ns, kind, sync_offset(round)).await);
            })
            .await;
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    drop(delivery);
    let kinds = kinds.iter().zip(&timings).map(|(kind, timings)| Times {
        name: kind.name.to_owned(),
        starts: timings.iter().map(|timing| seconds(timing.start)).collect(),
        ends: timings.iter().filter_map(|timing| timing.end).map(seconds).collect(),
    });
    let version = client().await.apiserver_version().await.expect("the API server says its version");
    let results = Results {
        command: ["bench pod-ends", &rounds.to_string()]
            .into_iter()
            .chain(names.iter().copied())
            .collect::<Vec<_>>()
            .join(" "),
        date: printed(&run_program("date", &["--utc", "+%F"], "")).trim().to_owned(),
        kubernetes: version.git_version.trim_start_matches('v').to_owned(),
        kinds: kinds.collect(),
    };
    println!("{}; next: bench report", results.write().display());
}

/// In hundredths: the clock has no more.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 100.0).round() / 100.0
}

async fn time_pod(ns: &Namespace, kind: &Kind, offset: f64) -> Timing {
    let main = shell("main", &format!("cat /proc/uptime; sleep {:.3}; exec cat /proc/uptime", 1.0 + offset));
    let object = kind.pod("one", &main);
    let created = uptime();
    ns.create_object(object).await;
    if kind.ends {
        ns.pod_until("one", "success", |pod| (PodView(pod).phase() == "Succeeded").then_some(())).await;
    } else {
        ns.pod_until("one", "its payload's end", |pod| PodView(pod).exit_code("main")).await;
    }
    let succeeded = uptime();
    let times = printed_uptimes(ns, "one", "main").await;
    Timing { start: times[0].saturating_sub(created), end: kind.ends.then(|| succeeded.saturating_sub(times[1])) }
}
