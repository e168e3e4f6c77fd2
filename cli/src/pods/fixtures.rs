//! Objects for tests.

use serde_json::{Value, json};

/// Returns a pod whose container has ended, and that only the proxy, which Istio's injector has added, keeps running.
pub(crate) fn stuck_pod() -> Value {
    let rendered = json!({"containers": ["istio-proxy"]}).to_string();
    let ended = json!({"exitCode": 0, "finishedAt": "2026-11-21T10:00:00Z"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "team", "name": "hello", "uid": "1f", "annotations": {"sidecar.istio.io/status": rendered},
        },
        "spec": {"restartPolicy": "Never", "containers": [{"name": "istio-proxy"}, {"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "main", "state": {"terminated": ended}}, {"name": "istio-proxy", "state": {"running": {}}},
        ]},
    })
}

/// Returns a stuck pod with one field changed, to which a JSON Pointer leads.
pub(crate) fn stuck_pod_with(pointer: &str, value: Value) -> Value {
    let mut pod = stuck_pod();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[field] = value;
    pod
}

/// Returns an object of this name with these labels.
pub(crate) fn labelled(name: &str, labels: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}
