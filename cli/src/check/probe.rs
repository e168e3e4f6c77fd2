//! Tries delivery `image-volume`: runs the shim from an image volume on one node of each kind.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::describe_error;
use contract::kind::PODS;
use contract::names::{BINARY_DIR, SHIM_BINARY, SHIM_UID};
use inject::Settings;
use kube::Client;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::attempt;
use super::finding::{Finding, Id};
use crate::completion::{PodCompletion, wait_for_pod};

/// Limits the time in which a node pulls the image and runs it.
const PROBE_TIMEOUT: Duration = Duration::from_mins(2);

/// Runs the shim on one node of each kind, in a namespace.
pub(super) async fn run(client: &Client, namespace: &str, nodes: &[Value], settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    for (kind, node) in one_node_per_kind(nodes) {
        eprintln!("istio-aux: running the shim from an image volume on {node} …");
        let problem = |what: &str, reason: &str, next: &str| {
            Finding::problem(Id::ImageVolume, format!("{kind}: {what} (tried on {node}): {reason}"), next)
        };
        found.push(match try_on(client, namespace, &node, settings).await {
            Ok(None) => {
                let message = format!("{kind}: runs the shim from an image volume (tried on {node})");
                Finding::ok(Id::ImageVolume, message)
            }
            Ok(Some(reason)) => problem("does not run the shim from an image volume", &reason, "keep --delivery=copy"),
            Err(error) => {
                let reason = describe_error(error.as_ref());
                problem("an image volume could not be tried", &reason, "istio-aux check --probe -n NAMESPACE")
            }
        });
    }
    if found.is_empty() {
        let message = "no node is ready, or none can be read, so no image volume was tried";
        found.push(Finding::problem(Id::ImageVolume, message, "kubectl get nodes"));
    }
    found
}

/// Returns the name of one Linux node of each kind that is ready: kubelet, runtime, system and architecture.
fn one_node_per_kind(nodes: &[Value]) -> BTreeMap<String, String> {
    let field = |node: &Value, field: &str| node["status"]["nodeInfo"][field].as_str().unwrap_or("?").to_owned();
    let fields = ["kubeletVersion", "containerRuntimeVersion", "operatingSystem", "architecture"];
    let is_ready = |node: &&Value| {
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let linux = nodes.iter().filter(|node| field(node, "operatingSystem") == "linux").filter(is_ready);
    linux
        .map(|node| {
            let kind = fields.map(|name| field(node, name)).join(", ");
            (format!("nodes of {kind}"), node["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        })
        .collect()
}

/// Returns the pod of a dry run, on this node and with the shim from an image volume.
fn pod(node: &str, settings: &Settings) -> Value {
    let policy = settings.pull_policy.as_str();
    let mut pod = attempt::pod(settings);
    pod["metadata"] = json!({"generateName": "istio-aux-probe-", "labels": {"sidecar.istio.io/inject": "false"}});
    let spec = &mut pod["spec"];
    spec["nodeName"] = node.into();
    spec["terminationGracePeriodSeconds"] = 0.into();
    spec["imagePullSecrets"] = settings.pull_secrets.iter().map(|name| json!({"name": name})).collect();
    spec["volumes"] = json!([{"name": "shim", "image": {"reference": settings.shim_image, "pullPolicy": policy}}]);
    let container = &mut spec["containers"][0];
    container["imagePullPolicy"] = policy.into();
    container["command"] = json!([SHIM_BINARY, "--version"]);
    container["volumeMounts"] = json!([{"name": "shim", "mountPath": BINARY_DIR, "readOnly": true}]);
    container["securityContext"]["runAsGroup"] = SHIM_UID.into();
    pod
}

/// Returns why a node does not run the shim from an image volume; `None` if it does. `Err` if that cannot be tried.
async fn try_on(client: &Client, namespace: &str, node: &str, settings: &Settings) -> Result<Option<String>> {
    let pods = api::objects(client, PODS, Some(namespace));
    let object = serde_json::from_value(pod(node, settings))?;
    let created = pods.create(&PostParams::default(), &object).await.context("the pod was rejected")?;
    let name = created.metadata.name.unwrap_or_default();
    let ended = if created.data["spec"]["volumes"][0]["image"].is_null() {
        Ok(Some("the API server has no image volumes (on by default since Kubernetes 1.35)".to_owned()))
    } else {
        failure_of(client, namespace, &name).await
    };
    if let Err(error) = pods.delete(&name, &DeleteParams::default()).await {
        eprintln!("istio-aux: pod {name} was not deleted: {}", describe_error(&error));
    }
    ended
}

/// Returns why a pod has not succeeded; `None` if it has.
async fn failure_of(client: &Client, namespace: &str, name: &str) -> Result<Option<String>> {
    Ok(match wait_for_pod(client, namespace, name, PROBE_TIMEOUT).await? {
        PodCompletion::Terminated(pod) if pod["status"]["phase"] == "Succeeded" => None,
        PodCompletion::Terminated(pod) => Some(reported_reason(&pod)),
        PodCompletion::Deleted => bail!("its pod was deleted"),
        PodCompletion::TimedOut(pod) => {
            Some(format!("did not finish within {PROBE_TIMEOUT:?}: {}", reported_reason(&pod)))
        }
    })
}

/// Returns the reason and message that the kubelet reports of a pod's container, or of the pod.
fn reported_reason(pod: &Value) -> String {
    let status = &pod["status"];
    let state = &status["containerStatuses"][0]["state"];
    let reported = ["waiting", "terminated"].into_iter().map(|kind| &state[kind]).find(|state| !state.is_null());
    let reported = reported.unwrap_or(status);
    let words = ["reason", "message"].into_iter().filter_map(|field| reported[field].as_str());
    let words: Vec<&str> = words.filter_map(|text| text.lines().next()).collect();
    if words.is_empty() { "the kubelet gives no reason".to_owned() } else { words.join(": ") }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;
    use api::fake::{Answer, client};

    fn node(name: &str, kubelet: &str, system: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name}, "status": {
            "nodeInfo": {
                "kubeletVersion": kubelet, "containerRuntimeVersion": "containerd://2.4.2", "operatingSystem": system,
                "architecture": "amd64",
            },
            "conditions": [{"type": "Ready", "status": ready}],
        }})
    }

    #[test]
    fn one_node_of_each_kind_is_tried() {
        let nodes = [
            node("a", "v1.36.3", "linux", "True"),
            node("b", "v1.36.3", "linux", "Unknown"),
            node("c", "v1.35.0", "linux", "True"),
            node("d", "v1.36.3", "windows", "True"),
        ];
        let kinds: Vec<(String, String)> = one_node_per_kind(&nodes).into_iter().collect();
        let kind = |(kubelet, name): (&str, &str)| {
            (format!("nodes of {kubelet}, containerd://2.4.2, linux, amd64"), name.to_owned())
        };
        assert_eq!(kinds, [("v1.35.0", "c"), ("v1.36.3", "a")].map(kind));
    }

    #[tokio::test]
    async fn pod_that_is_rejected_says_nothing_of_image_volumes() {
        let settings = Settings { pull_secrets: vec!["pull".to_owned()], ..Settings::new("shim:1") };
        let (client, requests) = client([Answer::forbidden("POST /api/v1/namespaces/team/pods?", "exceeded quota")]);
        let found = run(&client, "team", &[node("a", "v1.36.3", "linux", "True")], &settings).await;
        let line = "problem image-volume: nodes of v1.36.3, containerd://2.4.2, linux, amd64: an image volume could not be \
                    tried (tried on a): the pod was rejected: exceeded quota";
        assert_eq!(found.iter().map(Finding::line).collect::<Vec<_>>(), [line]);
        assert!(requests.bodies()[0].contains(r#""imagePullSecrets":[{"name":"pull"}]"#), "{:?}", requests.bodies());
        let none = run(&client, "team", &[node("a", "v1.36.3", "linux", "False")], &settings).await;
        assert_eq!(none[0].severity, Severity::Problem, "{none:?}");
    }
}
