//! How soon pods of many shapes end after their last payload, in no mesh and with istio-aux.

use std::time::Duration;

use contract::names::WAIT_FOR_ANNOTATION;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{
    annotated, native_sidecar, payload_image, pod, pod_spec, shell, with_default_grace, with_init, with_memory,
};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::timing::{Summary, printed_uptimes, sync_offset, uptime};

/// A kind of pod.
struct Shape {
    name: &'static str,
    /// A pod whose last payload takes so many seconds.
    pod: fn(f64) -> Value,
    end: End,
}

/// How a pod of a shape comes to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeded,
    Failed,
    /// It succeeds after an ephemeral container was added and has ended.
    SucceededAfterDebug,
    /// It is deleted while it runs.
    Deleted,
}

const SHAPES: [Shape; 12] = [
    Shape { name: "one container", pod: |s| never(&[payload("main", s)]), end: End::Succeeded },
    Shape {
        name: "three containers",
        pod: |s| never(&[payload("first", 0.5), payload("second", 1.0), payload("third", s)]),
        end: End::Succeeded,
    },
    Shape {
        name: "a native sidecar of the user's",
        pod: |s| initialized(s, &[native_sidecar("sidecar")]),
        end: End::Succeeded,
    },
    Shape {
        name: "two init containers",
        pod: |s| initialized(s, &[shell("first", "true"), shell("second", "true")]),
        end: End::Succeeded,
    },
    Shape { name: "`OnFailure`, two failed attempts first", pod: third_attempt, end: End::Succeeded },
    Shape { name: "a `postStart` hook", pod: |s| hooked("postStart", "sleep 0.5", s), end: End::Succeeded },
    // A container that ends by itself does not run it.
    Shape { name: "a `preStop` hook", pod: |s| hooked("preStop", "sleep 5", s), end: End::Succeeded },
    Shape { name: "a debug container that ends before the payload", pod: debugged, end: End::SucceededAfterDebug },
    Shape { name: "deleted half-way: `DELETE` to absence", pod: until_sigterm, end: End::Deleted },
    Shape { name: "a payload that fails", pod: failing, end: End::Failed },
    Shape { name: "`wait-for` main, and a helper that ends 3 s later", pod: with_helper, end: End::Succeeded },
    Shape { name: "`OnFailure`, a liveness probe that never fails", pod: with_liveness_probe, end: End::Succeeded },
];

/// Measured beside the mesh alone: SIGTERM has Istio's proxy drain for 5 s, with and without istio-aux.
const DELETED_IN_THE_MESH: Shape =
    Shape { name: "deleted half-way, beside the mesh alone", pod: until_sigterm, end: End::Deleted };

fn one(spec: Value) -> Value {
    pod("one", &with_default_grace(spec))
}

fn never(containers: &[Value]) -> Value {
    one(pod_spec("Never", containers))
}

/// A container that runs so many seconds, and prints when it ends.
fn payload(name: &str, seconds: f64) -> Value {
    shell(name, &format!("sleep {seconds:.3}; exec cat /proc/uptime"))
}

fn initialized(seconds: f64, init_containers: &[Value]) -> Value {
    one(with_init(pod_spec("Never", &[payload("main", seconds)]), init_containers))
}

fn third_attempt(seconds: f64) -> Value {
    let script = format!(
        "echo x >> /memory/attempts; [ $(wc -l < /memory/attempts) -ge 3 ] || exit 1; sleep {seconds:.3}; exec cat /proc/uptime"
    );
    one(with_memory(pod_spec("OnFailure", &[shell("main", &script)])))
}

fn hooked(hook: &str, script: &str, seconds: f64) -> Value {
    let mut main = payload("main", seconds);
    main["lifecycle"] = json!({hook: {"exec": {"command": ["sh", "-c", script]}}});
    never(&[main])
}

fn debugged(seconds: f64) -> Value {
    let wait = "until [ -e /memory/debugged ]; do sleep 0.1; done";
    let main = shell("main", &format!("{wait}; sleep {seconds:.3}; exec cat /proc/uptime"));
    one(with_memory(pod_spec("Never", &[main])))
}

/// The debug container for which [`debugged`] waits.
fn debug_container() -> Value {
    let mounts = json!([{"name": "memory", "mountPath": "/memory"}]);
    // Ephemeral containers have no resources.
    json!({"name": "debug", "image": payload_image(), "command": ["touch", "/memory/debugged"], "volumeMounts": mounts})
}

fn until_sigterm(_seconds: f64) -> Value {
    never(&[shell("main", "trap 'kill $!; exit 0' TERM; sleep 86400 & wait $!")])
}

fn failing(seconds: f64) -> Value {
    never(&[shell("main", &format!("sleep {seconds:.3}; cat /proc/uptime; exit 3"))])
}

fn with_helper(seconds: f64) -> Value {
    annotated(never(&[payload("main", seconds), payload("helper", seconds + 3.0)]), WAIT_FOR_ANNOTATION, "main")
}

fn with_liveness_probe(seconds: f64) -> Value {
    let mut main = payload("main", seconds);
    main["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    one(pod_spec("OnFailure", &[main]))
}

/// The times of a shape, and of its baseline.
struct Row<'n> {
    shape: &'static Shape,
    baseline: &'n Namespace,
    baseline_times: Vec<Duration>,
    times: Vec<Duration>,
}

impl<'n> Row<'n> {
    fn new(shape: &'static Shape, baseline: &'n Namespace) -> Self {
        Self { shape, baseline, baseline_times: Vec::new(), times: Vec::new() }
    }
}

/// Runs so many rounds of two pods of each shape, and prints a row of a table for each.
pub(crate) async fn run(rounds: usize) {
    scenario("bench-shapes-no-mesh", &[], async |no_mesh: &Namespace| {
        scenario("bench-shapes-mesh", &[MESH], async |mesh: &Namespace| {
            scenario("bench-shapes", &[MESH, OPT_IN], async |opted_in: &Namespace| {
                let mut rows: Vec<Row> = SHAPES.iter().map(|shape| Row::new(shape, no_mesh)).collect();
                rows.push(Row::new(&DELETED_IN_THE_MESH, mesh));
                for round in 0..rounds {
                    // Interleaved, one pod at a time: what disturbs the machine disturbs both alike.
                    for row in &mut rows {
                        row.baseline_times.push(time_end(row.baseline, row.shape, round).await);
                        row.times.push(time_end(opted_in, row.shape, round).await);
                    }
                    eprintln!("round {} of {rounds}", round + 1);
                }
                print_table(&rows);
            })
            .await;
        })
        .await;
    })
    .await;
}

fn print_table(rows: &[Row]) {
    println!("| shape | no mesh: min, median, max | istio-aux: min, median, max | difference of medians |");
    println!("| --- | --- | --- | --- |");
    for Row { shape, baseline_times, times, .. } in rows {
        let (Some(baseline), Some(istio_aux)) = (Summary::of(baseline_times.clone()), Summary::of(times.clone()))
        else {
            continue;
        };
        let difference = istio_aux.median.as_secs_f64() - baseline.median.as_secs_f64();
        println!("| {} | {} | {} | {difference:+.2} s |", shape.name, baseline.cell(), istio_aux.cell());
    }
}

/// Runs a pod, and returns the time from its last payload's end, or its deletion, to its own end.
async fn time_end(ns: &Namespace, shape: &Shape, round: usize) -> Duration {
    let offset = sync_offset(round);
    let object = (shape.pod)(1.5 + offset);
    ns.create_object(object.clone()).await;
    match shape.end {
        End::Deleted => return time_deletion(ns, offset).await,
        End::SucceededAfterDebug => {
            until_main_runs(ns).await;
            ns.add_ephemeral_container("one", debug_container()).await;
        }
        End::Succeeded | End::Failed => {}
    }
    let phase = ns.pod_until("one", "the end", |pod| PodView(pod).final_phase()).await;
    let ended = uptime();
    let expected = if shape.end == End::Failed { "Failed" } else { "Succeeded" };
    assert_eq!(phase, expected, "{}", shape.name);
    let mut last_exit = Duration::ZERO;
    for container in object["spec"]["containers"].as_array().into_iter().flatten() {
        let name = container["name"].as_str().expect("a container has a name");
        last_exit = printed_uptimes(ns, "one", name).await.into_iter().fold(last_exit, Duration::max);
    }
    ns.delete_pod("one").await;
    until_gone(ns).await;
    ended.saturating_sub(last_exit)
}

async fn time_deletion(ns: &Namespace, offset: f64) -> Duration {
    until_main_runs(ns).await;
    // The shell sets its trap meanwhile.
    tokio::time::sleep(Duration::from_secs_f64(0.5 + offset)).await;
    let began = uptime();
    ns.delete_pod("one").await;
    until_gone(ns).await;
    uptime().saturating_sub(began)
}

async fn until_main_runs(ns: &Namespace) {
    ns.pod_until("one", "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
}

async fn until_gone(ns: &Namespace) {
    ns.until("pod one to go", async || (!ns.has_pod("one").await).then_some(())).await;
}
