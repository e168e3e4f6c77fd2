//! How long a decision takes, and a whole review, for pods of 8 KB and 100 KB after Istio's injector.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inject::pod::Pod;
use inject::review::answer;
use inject::{Settings, decide};
use serde_json::{Value, json};

/// A pod of about so many bytes: one that Istio has injected, with environment variables that fill it up.
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

fn decisions(criterion: &mut Criterion) {
    let settings = Settings::new("docker.io/istio-aux/shim:0.1.0");
    for (name, size) in [("8 KB", 8 << 10), ("100 KB", 100 << 10)] {
        let pod = pod(size);
        let text = pod.to_string();
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "1f", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "team",
                "operation": "CREATE", "object": pod},
        })
        .to_string();
        let mut group = criterion.benchmark_group(format!("{name} ({} bytes)", text.len()));
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function("read and decide", |bencher| {
            bencher.iter(|| {
                let pod: Pod = serde_json::from_str(black_box(&text)).expect("it is a pod");
                decide(&pod, &settings)
            });
        });
        group.bench_function("review to answer", |bencher| {
            bencher.iter(|| answer(black_box(review.as_bytes()), &settings).expect("it is a review"));
        });
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);
