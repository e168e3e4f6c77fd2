//! A pod whose proxy runs on its node (docs/node.md): it gets the runtime class of the node agent, and the labels of a pod in
//! the mesh. Its containers keep all but their probes.

mod probes;

use contract::names::{
    CANONICAL_NAME_LABEL, CANONICAL_REVISION_LABEL, ISTIO_INJECT, NODE_RUNTIME_CLASS, PROXY_CONTAINER, TLS_MODE_LABEL,
};
use json_patch::Patch;

use crate::Decision;
use crate::patch::PatchBuilder;
use crate::pod::Pod;

/// Gives a pod its proxy on the node. Deciding again on the patched pod changes nothing.
#[must_use]
pub fn move_proxy_to_node(pod: &Pod) -> Decision {
    if let Some(reason) = obstacle(pod) {
        let warnings = vec![format!("istio-aux: no proxy on the node for this pod: {reason}")];
        return Decision { warnings, ..Decision::without_shim(Patch::default(), reason) };
    }
    let mut patch = PatchBuilder::new(pod);
    if pod.spec.runtime_class().is_none() {
        patch.runtime_class(NODE_RUNTIME_CLASS);
    }
    patch.default_label(ISTIO_INJECT, "false");
    // Without it, peers send plaintext.
    patch.default_label(TLS_MODE_LABEL, "istio");
    patch.default_label(CANONICAL_NAME_LABEL, &canonical_name(pod));
    patch.default_label(CANONICAL_REVISION_LABEL, canonical_revision(pod));
    let warnings = probes::send_to_pilot_agent(pod, &mut patch).into_iter().map(str::to_owned).collect();
    let patch = patch.finish();
    let reason = if patch.is_empty() {
        "the pod uses the proxy on its node already"
    } else {
        "the pod uses the proxy on its node"
    };
    Decision { warnings, ..Decision::without_shim(patch, reason) }
}

/// Returns the reason why a pod cannot have its proxy on the node.
fn obstacle(pod: &Pod) -> Option<&'static str> {
    let class = pod.spec.runtime_class();
    if class.is_some_and(|class| class != NODE_RUNTIME_CLASS) {
        return Some("the pod has a runtime class of its own");
    }
    if pod.spec.host_network == Some(true) {
        return Some("the pod is in the node's network (hostNetwork)");
    }
    if pod.all_containers().any(|container| container.is_named(PROXY_CONTAINER)) {
        return Some("the pod has a container istio-proxy");
    }
    if class.is_none() && pod.label(ISTIO_INJECT).is_some() {
        return Some("the pod already sets sidecar.istio.io/inject");
    }
    None
}

/// Returns the service's name as Istio's injector forms it: a label's value, or else the workload's name.
fn canonical_name(pod: &Pod) -> String {
    let label = ["app.kubernetes.io/name", "app"].into_iter().find_map(|key| pod.label(key));
    label.map_or_else(|| as_label(pod.workload_name()), str::to_owned)
}

/// Makes a name a label's value as Istio's template does, by `trunc 63 | trimAll "-_."`.
fn as_label(name: &str) -> String {
    name.chars().take(63).collect::<String>().trim_matches(['-', '_', '.']).to_owned()
}

fn canonical_revision(pod: &Pod) -> &str {
    ["app.kubernetes.io/version", "version"].into_iter().find_map(|key| pod.label(key)).unwrap_or("latest")
}

#[cfg(test)]
mod tests {
    use json_patch::merge;
    use serde_json::{Value, json};

    use super::*;

    pub(super) fn a_pod(change: &Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": "step", "newer": 1},
            "spec": {"containers": [{"name": "main", "newer": {"a": 1}}]},
        });
        merge(&mut pod, change);
        pod
    }

    pub(super) fn decided(pod: Value) -> (Value, Decision) {
        crate::decided(move_proxy_to_node, pod)
    }

    #[test]
    fn pod_gets_only_the_runtime_class_and_labels() {
        let (mut pod, _) = decided(a_pod(&json!({})));
        let labels = json!({
            "sidecar.istio.io/inject": "false", "security.istio.io/tlsMode": "istio",
            "service.istio.io/canonical-name": "step", "service.istio.io/canonical-revision": "latest",
        });
        assert_eq!((&pod["spec"]["runtimeClassName"], &pod["metadata"]["labels"]), (&json!("istio-aux"), &labels));
        merge(&mut pod, &json!({"spec": {"runtimeClassName": null}, "metadata": {"labels": null}}));
        assert_eq!(pod, a_pod(&json!({})));
    }

    #[test]
    fn unsupported_pod_is_unchanged_with_a_reason() {
        let cases = [
            (json!({"spec": {"runtimeClassName": "gvisor"}}), "runtime class"),
            (json!({"spec": {"hostNetwork": true}}), "hostNetwork"),
            (json!({"spec": {"containers": [{"name": "istio-proxy"}]}}), "istio-proxy"),
            (json!({"spec": {"initContainers": [{"name": "istio-proxy"}]}}), "istio-proxy"),
            (json!({"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}}), "sidecar.istio.io/inject"),
            (json!({"metadata": {"labels": {"sidecar.istio.io/inject": "true"}}}), "sidecar.istio.io/inject"),
        ];
        for (change, reason) in cases {
            let before = a_pod(&change);
            let (pod, decision) = decided(before.clone());
            assert_eq!(pod, before);
            assert!(decision.reason.contains(reason) && decision.warnings.concat().contains(reason), "{decision:?}");
        }
    }

    #[test]
    fn service_is_named_as_istio_names_it() {
        let owner =
            |kind: &str, name: &str| json!({"ownerReferences": [{"kind": kind, "name": name, "controller": true}]});
        let labels = |labels: Value| json!({"labels": labels});
        let long = "a".repeat(63);
        let cases = [
            (labels(json!({"app": "a", "version": "2"})), "a", "2"),
            (labels(json!({"app.kubernetes.io/name": "b", "app": "a", "app.kubernetes.io/version": "3"})), "b", "3"),
            (labels(json!({"service.istio.io/canonical-name": "c", "app": "a"})), "c", "latest"),
            (owner("Job", "train"), "train", "latest"),
            (json!({"name": null, "generateName": "step-"}), "step", "latest"),
            (json!({"name": null, "generateName": "x.-"}), "x", "latest"),
            (json!({"name": long}), &*long, "latest"),
            (json!({"name": format!("{long}b")}), &*long, "latest"),
            (json!({"name": format!("{}.b", &long[1..])}), &long[1..], "latest"),
        ];
        for (metadata, name, revision) in cases {
            let (pod, _) = decided(a_pod(&json!({"metadata": metadata})));
            let label = |key: &str| pod["metadata"]["labels"][format!("service.istio.io/canonical-{key}")].clone();
            assert_eq!((label("name"), label("revision")), (json!(name), json!(revision)), "{pod}");
        }
        let of_a_deployment = json!({"metadata": {
            "labels": {"pod-template-hash": "5f7"}, "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5f7", "controller": true}],
        }});
        let (pod, _) = decided(a_pod(&of_a_deployment));
        assert_eq!(pod["metadata"]["labels"]["service.istio.io/canonical-name"], "web");
    }
}
