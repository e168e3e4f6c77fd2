//! Whether any of many pods is missed or late. Pods in no mesh run among them, as the measure of what is late.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use contract::names::{PROXY_CONTAINER, SHIM_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{container, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::timing::{Summary, printed_uptimes, uptime};

/// After each so many pods in the mesh comes one in no mesh.
const SAMPLE_INTERVAL: usize = 10;
/// A pod that takes this much longer than the median in no mesh is late.
const LATE_AFTER: Duration = Duration::from_secs(5);
/// After so many pods that did not succeed the rest is not run.
const FAILURE_LIMIT: usize = 10;
/// A pod that takes longer counts as failed.
const WAIT_TIMEOUT: Duration = Duration::from_secs(150);
const LIST_INTERVAL: Duration = Duration::from_millis(50);

/// Runs so many pods, so many at once, and says how they ended. Panics, which keeps the pods, if any did not succeed.
pub(crate) async fn run(pods: usize, at_once: usize) {
    scenario("bench-many-no-mesh", &[], async |no_mesh: &Namespace| {
        scenario("bench-many", &[MESH, OPT_IN], async |mesh: &Namespace| {
            let began = uptime();
            let (mesh, no_mesh) = (EndWatch::new(mesh), EndWatch::new(no_mesh));
            let report = tokio::select! {
                report = Box::pin(run_all(&mesh, &no_mesh, pods, at_once)) => report,
                never = mesh.follow() => match never {},
                never = no_mesh.follow() => match never {},
            };
            let took = uptime().saturating_sub(began).as_secs();
            println!("{pods} pods in the mesh, {at_once} at a time, in {took} s");
            report.print();
            assert!(report.failures == 0, "{} pods did not succeed, and are kept", report.failures);
        })
        .await;
    })
    .await;
}

/// How one pod ended.
struct PodRun {
    in_mesh: bool,
    /// Payload's exit to the pod's success.
    took: Option<Duration>,
    shim_restarts: i32,
}

/// What is known of all pods that have been run.
#[derive(Default)]
struct Report {
    in_mesh: Vec<Duration>,
    in_no_mesh: Vec<Duration>,
    failures: usize,
    shim_restarts: i32,
}

impl Report {
    fn add(&mut self, run: &PodRun) {
        let times = if run.in_mesh { &mut self.in_mesh } else { &mut self.in_no_mesh };
        times.extend(run.took);
        self.failures += usize::from(run.took.is_none());
        self.shim_restarts += run.shim_restarts;
    }

    fn print(&self) {
        println!("{} succeeded; their shims were restarted {} times", self.in_mesh.len(), self.shim_restarts);
        for (name, times) in [("istio-aux", &self.in_mesh), ("no mesh", &self.in_no_mesh)] {
            if let Some(summary) = Summary::of(times.clone()) {
                println!("{name:<10} n={}  payload's exit to Succeeded {summary}", times.len());
            }
        }
        if let Some(no_mesh) = Summary::of(self.in_no_mesh.clone()) {
            let limit = no_mesh.median + LATE_AFTER;
            let late = self.in_mesh.iter().filter(|time| **time > limit).count();
            println!("{late} took more than {} s longer than the median in no mesh", LATE_AFTER.as_secs());
        }
    }
}

/// Runs all pods, and stops early where too many do not succeed.
async fn run_all(mesh: &EndWatch<'_>, no_mesh: &EndWatch<'_>, pods: usize, at_once: usize) -> Report {
    let began = uptime();
    let runs = (0..pods).flat_map(|n| {
        let sample = n.is_multiple_of(SAMPLE_INTERVAL).then(|| run_pod(no_mesh, n / SAMPLE_INTERVAL, false));
        [Some(run_pod(mesh, n, true)), sample].into_iter().flatten()
    });
    let mut runs = futures::stream::iter(runs).buffer_unordered(at_once);
    let (mut report, mut done) = (Report::default(), 0);
    while let Some(run) = runs.next().await {
        report.add(&run);
        done += usize::from(run.in_mesh);
        if run.in_mesh && done.is_multiple_of(50) {
            eprintln!("{done} of {pods} after {} s", uptime().saturating_sub(began).as_secs());
        }
        if report.failures >= FAILURE_LIMIT {
            eprintln!("{FAILURE_LIMIT} pods did not succeed: the rest is not run");
            break;
        }
    }
    report
}

/// Runs a pod to its end, and deletes it if it has succeeded.
async fn run_pod(watch: &EndWatch<'_>, n: usize, in_mesh: bool) -> PodRun {
    let (ns, name) = (watch.ns, format!("pod-{n}"));
    ns.create_object(short_pod(&name, n)).await;
    let Some(end) = watch.end_of(&name).await else {
        eprintln!("{} after {} s", PodView(&ns.pod(&name).await).in_a_line(), WAIT_TIMEOUT.as_secs());
        return PodRun { in_mesh, took: None, shim_restarts: 0 };
    };
    let shim_restarts = end.shim_restarts;
    if !end.succeeded {
        eprintln!("{}", PodView(&ns.pod(&name).await).in_a_line());
        return PodRun { in_mesh, took: None, shim_restarts };
    }
    let exits = printed_uptimes(ns, &name, "main").await;
    ns.delete_pod(&name).await;
    PodRun { in_mesh, took: exits.last().map(|exit| end.seen_at.saturating_sub(*exit)), shim_restarts }
}

/// A pod whose payload ends at once, or after 1 to 3 s, and prints when.
fn short_pod(name: &str, n: usize) -> Value {
    let main = match n % 4 {
        0 => container("main", &["cat", "/proc/uptime"]),
        seconds => shell("main", &format!("sleep {seconds}; exec cat /proc/uptime")),
    };
    pod(name, &pod_spec("Never", &[main]))
}

/// A pod's end, when it was seen.
#[derive(Clone, Copy)]
struct End {
    seen_at: Duration,
    succeeded: bool,
    shim_restarts: i32,
}

impl End {
    fn of(pod: &Pod) -> Self {
        let view = PodView(pod);
        // In modes proxy and wrap the shim runs in the proxy's container.
        let shim_restarts = [SHIM_CONTAINER, PROXY_CONTAINER].iter().filter_map(|name| view.restarts(name)).sum();
        Self { seen_at: uptime(), succeeded: view.phase() == "Succeeded", shim_restarts }
    }
}

/// Sees the pods of a namespace end: one list for all of them, since asking for each would keep the node busy.
struct EndWatch<'n> {
    ns: &'n Namespace,
    ends: RefCell<HashMap<String, End>>,
}

impl<'n> EndWatch<'n> {
    fn new(ns: &'n Namespace) -> Self {
        Self { ns, ends: RefCell::default() }
    }

    async fn follow(&self) -> Infallible {
        loop {
            for pod in self.ns.finished_pods().await {
                let name = pod.metadata.name.clone().unwrap_or_default();
                self.ends.borrow_mut().entry(name).or_insert_with(|| End::of(&pod));
            }
            tokio::time::sleep(LIST_INTERVAL).await;
        }
    }

    /// The end of a pod, unless it takes too long.
    async fn end_of(&self, name: &str) -> Option<End> {
        let seen = async {
            loop {
                let end = self.ends.borrow().get(name).copied();
                if let Some(end) = end {
                    return end;
                }
                tokio::time::sleep(LIST_INTERVAL).await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, seen).await.ok()
    }
}
