//! The kubelet's probes of a pod that takes mutual TLS only. They are sent to pilot-agent, as Istio's injector does. The node
//! agent passes the original probes to it, from an annotation.

use contract::names::{DEFAULT_STATUS_PORT, PROBES_ANNOTATION, REWRITE_PROBES_ANNOTATION};
use serde_json::{Map, Value, json};

use super::{Room, is_false};
use crate::patch::PatchBuilder;
use crate::pod::{Container, Pod};

/// The API server's own default, without which pilot-agent gives a probe no time.
const DEFAULT_TIMEOUT_SECONDS: u64 = 1;

/// Sends the probes to pilot-agent. Returns a warning where that cannot be done.
pub(super) fn send_to_pilot_agent(pod: &Pod, patch: &mut PatchBuilder, room: &mut Room) -> Option<&'static str> {
    if is_false(pod, REWRITE_PROBES_ANNOTATION) {
        return None;
    }
    let init = pod.spec.init_containers.as_deref().unwrap_or_default();
    let lists = [("containers", pod.spec.containers.as_slice()), ("initContainers", init)];
    let containers = lists.into_iter().flat_map(|(list, all)| all.iter().enumerate().map(move |each| (list, each)));
    let probes = containers.flat_map(|(list, (index, container))| {
        rewritten_probes(container).map(move |(field, probe)| (list, index, field, probe))
    });
    let probes: Vec<_> = probes.collect();
    if probes.is_empty() {
        return None;
    }
    let annotation = pod.annotation(PROBES_ANNOTATION);
    let mut originals: Map<_, _> = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    originals.extend(probes.iter().map(|(.., probe)| (probe.path.clone(), probe.original.clone())));
    let originals = Value::Object(originals).to_string();
    if !room.take(&[(PROBES_ANNOTATION, &originals)]) {
        return Some("istio-aux: probes left unchanged: they are too long for an annotation");
    }
    patch.annotation(PROBES_ANNOTATION, &originals);
    for (list, index, field, probe) in probes {
        patch.probe(list, index, field, probe.rewritten);
    }
    None
}

/// A probe that is sent to pilot-agent.
struct Probe {
    /// The path that the kubelet requests from pilot-agent.
    path: String,
    rewritten: Value,
    /// The original probe, in the form that pilot-agent reads.
    original: Value,
}

/// Returns the container's probes over the network, by their fields.
fn rewritten_probes(container: &Container) -> impl Iterator<Item = (&'static str, Probe)> {
    let probes = [
        ("livenessProbe", "livez", &container.liveness_probe),
        ("readinessProbe", "readyz", &container.readiness_probe),
        ("startupProbe", "startupz", &container.startup_probe),
    ];
    probes.into_iter().filter_map(|(field, check, raw)| {
        let path = format!("/app-health/{}/{check}", container.name.as_str());
        Some((field, rewrite(raw.as_ref()?.get(), container, path)?))
    })
}

fn rewrite(probe: &str, container: &Container, path: String) -> Option<Probe> {
    let mut probe: Map<String, Value> = serde_json::from_str(probe).ok()?;
    let kind =
        ["httpGet", "tcpSocket", "grpc"].into_iter().find(|kind| probe.get(*kind).is_some_and(Value::is_object))?;
    let mut action = probe.remove(kind)?;
    let is_rewritten = action["path"] == path.as_str() && action["port"] == DEFAULT_STATUS_PORT;
    if is_rewritten || action["host"].as_str().is_some_and(|host| !host.is_empty()) {
        return None;
    }
    // pilot-agent does not know the names of ports.
    action["port"] = port(&action["port"], container)?.into();
    let mut get = json!({"path": path, "port": DEFAULT_STATUS_PORT});
    // The kubelet still sends them, and pilot-agent passes on what it gets.
    if let Some(headers) = action.get("httpHeaders") {
        get["httpHeaders"] = headers.clone();
    }
    let timeout = probe.get("timeoutSeconds").cloned().unwrap_or_else(|| DEFAULT_TIMEOUT_SECONDS.into());
    let original = json!({kind: action, "timeoutSeconds": timeout});
    probe.insert("httpGet".to_owned(), get);
    Some(Probe { path, rewritten: probe.into(), original })
}

/// Returns the number of a probe's port, which may be a name.
fn port(port: &Value, container: &Container) -> Option<u64> {
    let Some(name) = port.as_str() else { return port.as_u64() };
    let ports: Vec<Value> = serde_json::from_str(container.ports.as_ref()?.get()).ok()?;
    ports.iter().find(|port| port["name"] == name)?["containerPort"].as_u64()
}

#[cfg(test)]
mod tests {
    use contract::names::PASSED_ANNOTATION_LIMIT;

    use super::super::ANNOTATIONS_LIMIT;
    use super::super::tests::{a_pod, decided};
    use super::*;

    fn with_probes(probes: &Value) -> Value {
        let mut pod = a_pod(&json!({}));
        json_patch::merge(&mut pod["spec"]["containers"][0], probes);
        pod
    }

    fn originals(pod: &Value) -> Value {
        let text = pod["metadata"]["annotations"][PROBES_ANNOTATION].as_str().unwrap();
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn network_probes_are_sent_to_pilot_agent() {
        let headers = json!([{"name": "a", "value": "b"}]);
        let get = json!({"path": "/ready", "port": "web", "scheme": "HTTPS", "httpHeaders": headers});
        let (pod, _) = decided(with_probes(&json!({
            "ports": [{"name": "other", "containerPort": 1}, {"name": "web", "containerPort": 8080}],
            "readinessProbe": {"httpGet": get, "periodSeconds": 3, "timeoutSeconds": 2},
            "livenessProbe": {"tcpSocket": {"port": 9}},
            "startupProbe": {"grpc": {"port": 7, "service": "s"}, "newer": 1},
        })));
        let main = &pod["spec"]["containers"][0];
        let asks = |check: &str| json!({"path": format!("/app-health/main/{check}"), "port": 15020});
        assert_eq!(
            main["readinessProbe"],
            json!({
                "httpGet": {"path": "/app-health/main/readyz", "port": 15020, "httpHeaders": headers},
                "periodSeconds": 3, "timeoutSeconds": 2,
            })
        );
        assert_eq!(main["livenessProbe"], json!({"httpGet": asks("livez")}));
        assert_eq!(main["startupProbe"], json!({"httpGet": asks("startupz"), "newer": 1}));
        let expected = json!({
            "/app-health/main/readyz": {
                "httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTPS", "httpHeaders": headers}, "timeoutSeconds": 2,
            },
            "/app-health/main/livez": {"tcpSocket": {"port": 9}, "timeoutSeconds": 1},
            "/app-health/main/startupz": {"grpc": {"port": 7, "service": "s"}, "timeoutSeconds": 1},
        });
        assert_eq!(originals(&pod), expected);
    }

    #[test]
    fn probes_that_only_resemble_pilot_agents_are_sent_to_it() {
        for get in [json!({"path": "/app-health/main/readyz", "port": 80}), json!({"path": "/", "port": 15020})] {
            let (pod, _) = decided(with_probes(&json!({"readinessProbe": {"httpGet": get}})));
            assert_eq!(originals(&pod)["/app-health/main/readyz"]["httpGet"], get);
        }
    }

    #[test]
    fn probes_of_a_later_container_are_added() {
        let probe = json!({"tcpSocket": {"port": 9}});
        let sidecar = json!([{"name": "helper", "restartPolicy": "Always", "startupProbe": probe}]);
        let (mut pod, _) = decided(a_pod(&json!({"spec": {"initContainers": sidecar}})));
        assert_eq!(pod["spec"]["initContainers"][0]["startupProbe"]["httpGet"]["port"], 15020);
        let later = json!({"name": "later", "livenessProbe": probe});
        pod["spec"]["containers"].as_array_mut().unwrap().push(later);
        let (pod, _) = decided(pod);
        let paths: Vec<_> = originals(&pod).as_object().unwrap().keys().cloned().collect();
        assert_eq!(paths, ["/app-health/helper/startupz", "/app-health/later/livez"]);
    }

    #[test]
    fn other_probes_are_unchanged() {
        let cases = [
            json!({"readinessProbe": {"exec": {"command": ["true"]}}}),
            json!({"readinessProbe": {"httpGet": {"port": 80, "host": "other"}}}),
            json!({"readinessProbe": {"httpGet": {"port": "unknown"}}}),
            json!({"readinessProbe": null}),
            json!({"readinessProbe": []}),
            json!({"readinessProbe": {"httpGet": null}}),
        ];
        for probes in cases {
            let before = with_probes(&probes);
            let (pod, decision) = decided(before.clone());
            assert_eq!(pod["spec"]["containers"], before["spec"]["containers"]);
            assert_eq!(
                (&pod["metadata"]["annotations"][PROBES_ANNOTATION], decision.warnings.len()),
                (&Value::Null, 0)
            );
        }
    }

    #[test]
    fn opted_out_or_oversized_probes_are_unchanged() {
        let probe = |path: &str| json!({"readinessProbe": {"httpGet": {"port": 80, "path": path}}});
        let mut kept = with_probes(&probe("/"));
        for value in ["false", "False", "0"] {
            kept["metadata"]["annotations"] = json!({"sidecar.istio.io/rewriteAppHTTPProbers": value});
            let (pod, decision) = decided(kept.clone());
            assert_eq!((&pod["spec"]["containers"], decision.warnings.len()), (&kept["spec"]["containers"], 0));
        }
        let long = with_probes(&probe(&"a".repeat(PASSED_ANNOTATION_LIMIT)));
        let mut full = with_probes(&probe("/"));
        full["metadata"]["annotations"] = json!({"other": "a".repeat(ANNOTATIONS_LIMIT - 100)});
        for before in [long, full] {
            let (pod, decision) = decided(before.clone());
            assert_eq!(pod["spec"]["containers"], before["spec"]["containers"]);
            assert!(decision.warnings.concat().contains("too long for an annotation"), "{:?}", decision.warnings);
        }
    }
}
