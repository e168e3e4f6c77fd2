//! Measures how long a decision takes, and a whole review, for pods of 8 KB and 100 KB after Istio's injector.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use inject::pod::Pod;
use inject::review::answer;
use inject::{Entry, Settings, decide};
use serde_json::{Value, json};

/// Returns a pod of about so many bytes: one that Istio has injected, with environment variables that fill it up.
fn pod(size: usize) -> Value {
    let mut pod: Value = serde_json::from_str(include_str!("../tests/pods/classic-proxy.json")).expect("it is JSON");
    let main = pod["spec"]["containers"].as_array_mut().expect("a list").last_mut().expect("a payload");
    main["env"] = json!([]);
    let missing = size.saturating_sub(pod.to_string().len());
    let variable = |n: usize| json!({"name": format!("VARIABLE_{n:05}"), "value": "a value of some forty characters, as they are"});
    let each = variable(0).to_string().len() + 1;
    let main = pod["spec"]["containers"].as_array_mut().expect("a list").last_mut().expect("a payload");
    main["env"] = (0..missing / each).map(variable).collect();
    pod
}

fn settings() -> Settings {
    Settings::new("docker.io/istio-aux/shim:0.1.0")
}

fn decisions(criterion: &mut Criterion) {
    let settings = settings();
    for (name, size) in [("8 KB", 8 << 10), ("100 KB", 100 << 10)] {
        let text = pod(size).to_string();
        let review = review(r#""operation":"CREATE""#, &text);
        let mut group = criterion.benchmark_group(format!("{name} ({} bytes)", text.len()));
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function("read and decide", |bencher| {
            bencher.iter(|| {
                let pod: Pod = serde_json::from_str(black_box(&text)).expect("it is a pod");
                decide(&pod, &settings)
            });
        });
        measure_answer(&mut group, Entry::Injection, &review);
    }
    let mut ended = pod(8 << 10);
    ended["spec"]["initContainers"] =
        json!([{"name": "aux-shim", "args": ["watch", "--await=main", "--await=metrics"]}]);
    let end = |name: &str| json!({"name": name, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
    ended["status"] = json!({"phase": "Running", "containerStatuses": [end("main"), end("metrics")]});
    // A review of a kubelet's status has the pod as it was, too.
    let ended = ended.to_string();
    let review = review(&format!(r#""operation":"UPDATE","subResource":"status","oldObject":{ended}"#), &ended);
    let mut group = criterion.benchmark_group(format!("report of the end ({} bytes)", review.len()));
    measure_answer(&mut group, Entry::Ended, &review);
}

/// Returns a review of a pod, with more fields of the request.
fn review(fields: &str, pod: &str) -> String {
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1f","kind":{{"group":"","version":"v1","kind":"Pod"}},"namespace":"team",{fields},"object":{pod}}}}}"#
    )
}

fn measure_answer(group: &mut BenchmarkGroup<WallTime>, entry: Entry, review: &str) {
    let settings = settings();
    group.bench_function("review to answer", |bencher| {
        bencher.iter(|| answer(entry, black_box(review.as_bytes()), &settings).expect("it is a review"));
    });
}

/// Measures pods that are made to cost as much as they can.
fn hostile_pods(criterion: &mut Criterion) {
    let container = |n: usize| json!({"name": format!("c{n}"), "command": ["true"]});
    let injected = |annotations: Value, containers: usize| {
        let mut pod = pod(0);
        let list = pod["spec"]["containers"].as_array_mut().expect("a list");
        list.extend((0..containers).map(container));
        json_patch::merge(&mut pod, &json!({"metadata": {"annotations": annotations}}));
        pod.to_string()
    };
    let list = |item: &dyn Fn(usize) -> String, bytes: usize| {
        let mut text = String::new();
        let mut n = 0;
        while text.len() < bytes {
            text += &item(n);
            n += 1;
        }
        text
    };
    let mib = 1 << 20;
    for (name, pod) in [
        ("10,000 containers", injected(json!({}), 10_000)),
        ("400 containers and 1 MiB of wait-for", {
            injected(json!({"istio-aux.io/wait-for": list(&|n| format!("c{n},"), mib)}), 400)
        }),
        ("1 MiB of bad quit URLs", {
            injected(json!({"istio-aux.io/quit": list(&|n| format!("http://10.0.0.1:{n}/,"), mib)}), 0)
        }),
        ("1 MiB of shim-requests", {
            injected(json!({"istio-aux.io/shim-requests": list(&|n| format!("cpu={n}m,"), mib)}), 0)
        }),
        (
            "16 KiB of YAML keys",
            injected(json!({"proxy.istio.io/config": list(&|n| format!("k{n}: {n}\n"), 16_370)}), 0),
        ),
        ("1 MiB of YAML keys", injected(json!({"proxy.istio.io/config": list(&|n| format!("k{n}: {n}\n"), mib)}), 0)),
        ("1 MiB of nested YAML", injected(json!({"proxy.istio.io/config": "{a: ".repeat(mib / 4)}), 0)),
        ("1 MiB of nested JSON", injected(json!({"proxy.istio.io/config": "[".repeat(mib)}), 0)),
        ("1 MiB of escapes", injected(json!({"proxy.istio.io/config": "\"".repeat(mib / 2)}), 0)),
        ("1 MiB of labels", {
            let labels: serde_json::Map<_, _> = (0..40_000).map(|n| (format!("label-{n}"), json!("value"))).collect();
            injected(json!({}), 0).replacen("\"labels\":{", &format!("\"labels\":{},\"x\":{{", json!(labels)), 1)
        }),
        ("an injector's status of 1 MiB", {
            let names: Vec<String> = (0..90_000).map(|n| format!("name-{n}")).collect();
            injected(json!({"sidecar.istio.io/status": json!({"containers": names}).to_string()}), 0)
        }),
    ] {
        let mut group = criterion.benchmark_group(format!("{name} ({} bytes)", pod.len()));
        group.sample_size(10);
        measure_answer(&mut group, Entry::Injection, &review(r#""operation":"CREATE""#, &pod));
    }
}

criterion_group!(benches, decisions, hostile_pods);
criterion_main!(benches);
