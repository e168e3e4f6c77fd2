//! Tries delivery `image-volume`: runs the shim from an image volume on one node of each kind.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::describe_error;
use contract::kind::PODS;
use contract::names::{BINARY_DIR, SHIM_BINARY, SHIM_UID};
use inject::Settings;
use kube::Client;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::finding::{Finding, Id};
use crate::completion::{PodCompletion, wait_for_pod};

/// Limits the time in which a node pulls the image and runs it.
const PROBE_TIMEOUT: Duration = Duration::from_mins(2);

/// Runs the shim on one node of each kind, in a namespace.
pub(super) async fn run(client: &Client, namespace: &str, nodes: &[Value], settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    for (kind, node) in one_node_per_kind(nodes) {
        eprintln!("istio-aux: running the shim from an image volume on {node} …");
        found.push(match try_on(client, namespace, &node, settings).await {
            Ok(()) => {
                Finding::ok(Id::ImageVolume, format!("{kind}: runs the shim from an image volume (tried on {node})"))
            }
            Err(error) => Finding::problem(
                Id::ImageVolume,
                format!(
                    "{kind}: does not run the shim from an image volume (tried on {node}): {}",
                    describe_error(error.as_ref())
                ),
                "keep --delivery=copy",
            ),
        });
    }
    found
}

/// Returns the name of one Linux node of each kind: kubelet, runtime, system and architecture.
fn one_node_per_kind(nodes: &[Value]) -> BTreeMap<String, String> {
    let field = |node: &Value, field: &str| node["status"]["nodeInfo"][field].as_str().unwrap_or("?").to_owned();
    let fields = ["kubeletVersion", "containerRuntimeVersion", "operatingSystem", "architecture"];
    let linux = nodes.iter().filter(|node| field(node, "operatingSystem") == "linux");
    linux
        .map(|node| {
            let kind = fields.map(|name| field(node, name)).join(", ");
            (format!("nodes of {kind}"), node["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        })
        .collect()
}

fn pod(node: &str, settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "istio-aux-probe-", "labels": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "nodeName": node, "restartPolicy": "Never", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "probe", "image": settings.shim_image, "imagePullPolicy": settings.pull_policy.as_str(),
                "command": [SHIM_BINARY, "--version"],
                "volumeMounts": [{"name": "shim", "mountPath": BINARY_DIR, "readOnly": true}],
                "securityContext": {
                    "runAsUser": SHIM_UID, "runAsGroup": SHIM_UID, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
            "volumes": [{"name": "shim", "image": {
                "reference": settings.shim_image, "pullPolicy": settings.pull_policy.as_str(),
            }}],
        },
    })
}

async fn try_on(client: &Client, namespace: &str, node: &str, settings: &Settings) -> Result<()> {
    let pods = api::objects(client, PODS, Some(namespace));
    let object = serde_json::from_value(pod(node, settings))?;
    let created = pods.create(&PostParams::default(), &object).await.context("the pod was rejected")?;
    let name = created.metadata.name.unwrap_or_default();
    let ended = if created.data["spec"]["volumes"][0]["image"].is_null() {
        Err(anyhow!("the API server has no image volumes (on by default since Kubernetes 1.35)"))
    } else {
        wait_for_end(client, namespace, &name).await
    };
    if let Err(error) = pods.delete(&name, &DeleteParams::default()).await {
        eprintln!("istio-aux: pod {name} was not deleted: {}", describe_error(&error));
    }
    ended
}

async fn wait_for_end(client: &Client, namespace: &str, name: &str) -> Result<()> {
    match wait_for_pod(client, namespace, name, PROBE_TIMEOUT).await? {
        PodCompletion::Terminated(pod) if pod["status"]["phase"] == "Succeeded" => Ok(()),
        PodCompletion::Terminated(pod) => bail!(reported_reason(&pod)),
        PodCompletion::Deleted => bail!("its pod was deleted"),
        PodCompletion::TimedOut(pod) => bail!("did not finish within {PROBE_TIMEOUT:?}: {}", reported_reason(&pod)),
    }
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
    use super::*;

    #[test]
    fn one_node_of_each_kind_is_tried() {
        let node = |name: &str, kubelet: &str, system: &str| {
            json!({"metadata": {"name": name}, "status": {"nodeInfo": {
                "kubeletVersion": kubelet, "containerRuntimeVersion": "containerd://2.4.2", "operatingSystem": system,
                "architecture": "amd64",
            }}})
        };
        let nodes = [
            node("a", "v1.36.3", "linux"),
            node("b", "v1.36.3", "linux"),
            node("c", "v1.35.0", "linux"),
            node("d", "v1.36.3", "windows"),
        ];
        let kinds: Vec<String> = one_node_per_kind(&nodes).into_keys().collect();
        let kind = |kubelet: &str| format!("nodes of {kubelet}, containerd://2.4.2, linux, amd64");
        assert_eq!(kinds, ["v1.35.0", "v1.36.3"].map(kind));
    }
}
