//! A pod whose proxy runs on its node (docs/node.md): it gets the runtime class of the node agent, and the labels of a pod in
//! the mesh. Of its containers only the probes change, and Prometheus scrapes the proxy.

mod probes;
mod scrapes;

use contract::names::{
    AMBIENT_LABEL, CANONICAL_NAME_LABEL, CANONICAL_REVISION_LABEL, INJECTED_CONTAINERS, ISTIO_INJECT,
    NODE_RUNTIME_CLASS, NOT_AMBIENT, PASSED_ANNOTATION_LIMIT, TEMPLATES_ANNOTATION, TLS_MODE_LABEL,
};
use json_patch::Patch;

use crate::Decision;
use crate::patch::PatchBuilder;
use crate::pod::Pod;

/// The limit of all annotations of an object, in bytes of keys and values (apimachinery's `TotalAnnotationSizeLimitB`).
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// The values that Go's `strconv.ParseBool` parses as false.
const FALSE: [&str; 6] = ["0", "f", "F", "false", "False", "FALSE"];

/// Returns true if an annotation's value is one that Istio's injector parses as false.
fn is_false(pod: &Pod, annotation: &str) -> bool {
    pod.annotation(annotation).is_some_and(|value| FALSE.contains(&value))
}

/// The number of bytes by which a pod's annotations may grow.
struct Room(usize);

impl Room {
    fn of(pod: &Pod) -> Self {
        let present = pod.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
        let present: usize = present.into_iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
        Self(ANNOTATIONS_LIMIT.saturating_sub(present))
    }

    /// Takes what these annotations need. Takes nothing and returns false if that is too much, or if one is too long to be passed to
    /// pilot-agent.
    fn take(&mut self, annotations: &[(&str, &str)]) -> bool {
        let needed: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        let fits = needed <= self.0 && annotations.iter().all(|(_, value)| value.len() <= PASSED_ANNOTATION_LIMIT);
        if fits {
            self.0 -= needed;
        }
        fits
    }
}

/// Gives a pod its proxy on the node. Deciding again on the patched pod changes nothing.
#[must_use]
pub fn move_proxy_to_node(pod: &Pod) -> Decision {
    move_unless_opted_out(pod, pod.istio_injection())
}

/// Gives a pod that runs to completion its proxy on the node, also where only an annotation keeps it out of the mesh: Kubeflow's tools
/// write one, because with a sidecar their pods would not complete (pipelines#6067). A label of the pod's own stands.
#[must_use]
pub fn move_completing_pods_proxy_to_node(pod: &Pod) -> Decision {
    if pod.spec.restart_policy().is_none() {
        return Decision::without_shim(Patch::default(), "the pod does not run to completion");
    }
    move_unless_opted_out(pod, pod.label(ISTIO_INJECT))
}

/// Gives a pod its proxy on the node, unless `injection` is `false`: it opted out.
fn move_unless_opted_out(pod: &Pod, injection: Option<&str>) -> Decision {
    let has_class = pod.spec.runtime_class() == Some(NODE_RUNTIME_CLASS);
    // Pods of the class have this label anyway: it is not an opt-out.
    if !has_class && injection == Some("false") {
        return Decision::without_shim(Patch::default(), "the pod opted out, by sidecar.istio.io/inject");
    }
    if let Some(reason) = obstacle(pod) {
        let message = format!("istio-aux: no proxy on the node for this pod: {reason}");
        let decision = Decision::without_shim(Patch::default(), reason);
        if has_class {
            let next = format!("change that, or remove runtimeClassName {NODE_RUNTIME_CLASS}");
            return Decision { denial: Some(format!("{message}; {next}")), ..decision };
        }
        return Decision { warnings: vec![message], ..decision };
    }
    let mut patch = PatchBuilder::new(pod);
    if !has_class {
        patch.runtime_class(NODE_RUNTIME_CLASS);
    }
    patch.default_label(ISTIO_INJECT, "false");
    // Without it, istio-cni enrols pods of an ambient namespace, too.
    patch.default_label(AMBIENT_LABEL, NOT_AMBIENT);
    // Without it, peers send plaintext.
    patch.default_label(TLS_MODE_LABEL, "istio");
    patch.default_label(CANONICAL_NAME_LABEL, &canonical_name(pod));
    patch.default_label(CANONICAL_REVISION_LABEL, canonical_revision(pod));
    let mut room = Room::of(pod);
    let probes = probes::send_to_pilot_agent(pod, &mut patch, &mut room);
    let scrapes = scrapes::send_to_pilot_agent(pod, &mut patch, &mut room);
    let warnings = [probes, scrapes].into_iter().flatten().map(str::to_owned).collect();
    let patch = patch.finish();
    let reason = if patch.is_empty() {
        "the pod uses the proxy on its node already"
    } else {
        "the pod uses the proxy on its node"
    };
    Decision { warnings, ..Decision::without_shim(patch, reason) }
}

/// Marks the API server's copy of a static pod (`ConfigMirrorAnnotationKey` in Kubernetes).
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Returns the reason why a pod cannot have its proxy on the node.
fn obstacle(pod: &Pod) -> Option<&'static str> {
    if pod.annotation(MIRROR_ANNOTATION).is_some() {
        return Some("the pod is static: the kubelet runs it from a file, without what this copy says");
    }
    if pod.spec.runtime_class().is_some_and(|class| class != NODE_RUNTIME_CLASS) {
        return Some("the pod has a runtime class of its own");
    }
    if pod.spec.host_network == Some(true) {
        return Some("the pod is in the node's network (hostNetwork)");
    }
    if pod.spec.is_windows() {
        return Some("the pod is for Windows nodes, which have no istio-proxy");
    }
    if pod.spec.host_users == Some(false) {
        return Some("the pod is in a user namespace (hostUsers: false), where iptables cannot match the proxy's user");
    }
    if pod.all_containers().any(|container| INJECTED_CONTAINERS.iter().any(|name| container.is_named(name))) {
        return Some("the pod has a container of Istio's: istio-proxy, istio-init or istio-validation");
    }
    if pod.label(ISTIO_INJECT).is_some_and(|inject| inject != "false") {
        return Some("the pod asks for Istio's sidecar, by its label sidecar.istio.io/inject");
    }
    if pod.label(AMBIENT_LABEL).is_some_and(|mode| mode != NOT_AMBIENT) {
        return Some("the pod asks for ambient mode, by its label istio.io/dataplane-mode");
    }
    if pod.annotation(TEMPLATES_ANNOTATION).is_some_and(|templates| templates != "sidecar") {
        return Some("the pod asks for a template of its own, by inject.istio.io/templates");
    }
    pod.excess()
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
    fn annotations_take_the_room_that_the_api_server_has_left() {
        let others = "a".repeat(262_144 - "other".len() - 100);
        let pod = a_pod(&json!({"metadata": {"annotations": {"other": others}}})).to_string();
        let mut room = Room::of(&serde_json::from_str(&pod).unwrap());
        let mut takes = |length: usize| room.take(&[("a", &"b".repeat(length - 1))]);
        assert_eq!([50, 51, 50, 1].map(&mut takes), [true, false, true, false]);
    }

    #[test]
    fn pod_gets_only_the_runtime_class_labels_and_scrapes_of_the_proxy() {
        let (mut pod, _) = decided(a_pod(&json!({})));
        let labels = json!({
            "sidecar.istio.io/inject": "false", "security.istio.io/tlsMode": "istio", "istio.io/dataplane-mode": "none",
            "service.istio.io/canonical-name": "step", "service.istio.io/canonical-revision": "latest",
        });
        assert_eq!((&pod["spec"]["runtimeClassName"], &pod["metadata"]["labels"]), (&json!("istio-aux"), &labels));
        let annotations: Vec<_> = pod["metadata"]["annotations"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(annotations, ["prometheus.io/scrape", "prometheus.io/port", "prometheus.io/path"]);
        merge(
            &mut pod,
            &json!({"spec": {"runtimeClassName": null}, "metadata": {"labels": null, "annotations": null}}),
        );
        assert_eq!(pod, a_pod(&json!({})));
    }

    #[test]
    fn pod_of_the_class_gets_the_missing_labels() {
        for labels in [json!({}), json!({"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"})] {
            let change = json!({"metadata": {"labels": labels}, "spec": {"runtimeClassName": "istio-aux"}});
            let (pod, decision) = decided(a_pod(&change));
            assert_eq!((decision.warnings.len(), &decision.denial), (0, &None), "{pod}");
            assert_eq!(pod["metadata"]["labels"].as_object().map(serde_json::Map::len), Some(5), "{pod}");
        }
    }

    /// Returns pods that cannot have the proxy, and the reason.
    fn unsupported() -> [(Value, &'static str); 12] {
        let labels = |labels: Value| json!({"metadata": {"labels": labels}});
        [
            (json!({"spec": {"hostNetwork": true}}), "hostNetwork"),
            (json!({"spec": {"hostUsers": false}}), "hostUsers"),
            (json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "1"}}}), "static"),
            (json!({"spec": {"os": {"name": "windows"}}}), "Windows"),
            (json!({"spec": {"containers": [{"name": "istio-proxy"}]}}), "istio-proxy"),
            (json!({"spec": {"initContainers": [{"name": "istio-proxy"}]}}), "istio-proxy"),
            (json!({"spec": {"initContainers": [{"name": "istio-init"}]}}), "istio-init"),
            (json!({"spec": {"initContainers": [{"name": "istio-validation"}]}}), "istio-validation"),
            (labels(json!({"sidecar.istio.io/inject": "true"})), "sidecar.istio.io/inject"),
            (labels(json!({"sidecar.istio.io/inject": ""})), "sidecar.istio.io/inject"),
            (labels(json!({"istio.io/dataplane-mode": "ambient"})), "istio.io/dataplane-mode"),
            (
                json!({"metadata": {"annotations": {"inject.istio.io/templates": "grpc-agent"}}}),
                "inject.istio.io/templates",
            ),
        ]
    }

    #[test]
    fn unsupported_pod_is_unchanged_with_a_warning() {
        let own_class = (json!({"spec": {"runtimeClassName": "gvisor"}}), "runtime class");
        for (change, reason) in unsupported().into_iter().chain([own_class]) {
            let before = a_pod(&change);
            let (pod, decision) = decided(before.clone());
            assert_eq!((pod, &decision.denial), (before, &None));
            assert!(decision.reason.contains(reason) && decision.warnings.concat().contains(reason), "{decision:?}");
        }
    }

    /// Decides for a pod that is denied, and returns the reason and the message.
    fn denied(pod: &Value) -> (&'static str, String) {
        let (after, decision) = decided(pod.clone());
        assert_eq!((&after, decision.warnings.len()), (pod, 0));
        let message = decision.denial.unwrap_or_else(|| panic!("not denied: {pod}"));
        assert!(message.len() < 600 && message.lines().count() == 1, "{message}");
        (decision.reason, message)
    }

    #[test]
    fn unsupported_pod_of_the_class_is_denied() {
        for (change, expected) in unsupported() {
            let mut pod = a_pod(&change);
            pod["spec"]["runtimeClassName"] = json!("istio-aux");
            let (reason, message) = denied(&pod);
            let next = "; change that, or remove runtimeClassName istio-aux";
            assert!(reason.contains(expected), "{reason}");
            assert_eq!(message, format!("istio-aux: no proxy on the node for this pod: {reason}{next}"));
        }
    }

    #[test]
    fn pod_opts_out_by_label_or_annotation() {
        const OPTED_OUT: &str = "the pod opted out, by sidecar.istio.io/inject";
        const GETS_IT: &str = "the pod uses the proxy on its node";
        const ASKS: &str = "the pod asks for Istio's sidecar, by its label sidecar.istio.io/inject";
        let (yes, no) = (Some("true"), Some("false"));
        let cases = [
            (no, None, OPTED_OUT),
            (None, no, OPTED_OUT),
            (no, yes, OPTED_OUT),
            (yes, no, ASKS),
            (None, yes, GETS_IT),
            (None, Some("no"), GETS_IT),
        ];
        for (label, annotation, reason) in cases {
            let before = a_pod(&json!({"metadata": {
                "labels": {"sidecar.istio.io/inject": label}, "annotations": {"sidecar.istio.io/inject": annotation},
            }}));
            let (pod, decision) = decided(before.clone());
            assert_eq!(decision.reason, reason, "{before}");
            assert_eq!(pod == before, reason != GETS_IT, "{pod}");
            assert_eq!(decision.warnings.is_empty(), reason != ASKS, "{decision:?}");
        }
    }

    #[test]
    fn annotation_keeps_no_completing_pod_of_a_tenant_out() {
        let pod = |restart_policy: &str, label: Option<&str>| {
            a_pod(&json!({
                "metadata": {"labels": {"sidecar.istio.io/inject": label}, "annotations": {"sidecar.istio.io/inject": "false"}},
                "spec": {"restartPolicy": restart_policy},
            }))
        };
        let cases = [
            (pod("Never", None), true),
            (pod("OnFailure", None), true),
            (pod("Always", None), false),
            (pod("Never", Some("false")), false),
        ];
        for (before, is_moved) in cases {
            let (after, decision) = crate::decided(move_completing_pods_proxy_to_node, before.clone());
            assert_eq!(after["spec"]["runtimeClassName"] == "istio-aux", is_moved, "{}: {before}", decision.reason);
            assert_eq!(after == before, !is_moved, "{after}");
        }
    }

    #[test]
    fn service_is_named_as_istio_names_it() {
        let owner = |kind: &str, name: &str| json!({"generateName": "x-", "ownerReferences": [{"kind": kind, "name": name, "controller": true}]});
        let labels = |labels: Value| json!({"labels": labels});
        let with = |mut metadata: Value, change: Value| {
            merge(&mut metadata, &change);
            metadata
        };
        let long = "a".repeat(63);
        let cases = [
            (labels(json!({"app": "a", "version": "2"})), "a", "2"),
            (labels(json!({"app.kubernetes.io/name": "b", "app": "a", "app.kubernetes.io/version": "3"})), "b", "3"),
            (labels(json!({"service.istio.io/canonical-name": "c", "app": "a"})), "c", "latest"),
            (owner("Job", "train"), "train", "latest"),
            (owner("Job", "nightly-29381234"), "nightly", "latest"),
            (owner("Job", "of-2026"), "of-2026", "latest"),
            (owner("PyTorchJob", "nightly-29381234"), "nightly-29381234", "latest"),
            (with(owner("PyTorchJob", "train"), json!({"generateName": null})), "step", "latest"),
            (with(owner("ReplicaSet", "web-5f7"), json!({"labels": {"pod-template-hash": "5f7"}})), "web", "latest"),
            (
                with(owner("ReplicaSet", "web-5f7"), json!({"labels": {"rollouts-pod-template-hash": "5f7"}})),
                "web",
                "latest",
            ),
            (
                with(owner("ReplicaSet", "web-5f7"), json!({"labels": {"pod-template-hash": "6f7"}})),
                "web-5f7",
                "latest",
            ),
            (
                with(owner("ReplicationController", "web-1"), json!({"labels": {"deploymentconfig": "web"}})),
                "web",
                "latest",
            ),
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
    }
}
