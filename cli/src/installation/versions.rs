//! Reads the versions in a cluster: the webhook's from its pods, the shim's from the pods that have it.

use std::collections::BTreeMap;

use anyhow::Context;
use contract::kind::PODS;
use contract::names::{INSTALL_CONTAINER, SHIM_CONTAINER, SHIM_LABEL, SHIM_VOLUME, STATUS_ANNOTATION};
use kube::Client;
use kube::api::ListParams;
use serde::Serialize;
use serde_json::Value;

use super::webhook::installed_webhooks;
use crate::check::{UNFINISHED, note};
use crate::read;

/// Holds an image in use. A release's chart names images by digest, so the version stands beside it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Used {
    pub(crate) version: Option<String>,
    pub(crate) image: String,
    pub(crate) pods: usize,
}

/// Holds the versions in a cluster.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Versions {
    pub(crate) client: &'static str,
    pub(crate) server: Option<String>,
    pub(crate) webhook: Vec<Used>,
    pub(crate) shims: Vec<Used>,
    /// Says what could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unreadable: Vec<String>,
}

/// Is the version of this program.
pub(crate) const CLIENT_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Counts pods by version and image.
type Counts = BTreeMap<(Option<String>, String), usize>;

/// Reads the versions in a cluster.
pub(crate) async fn versions(client: &Client) -> Versions {
    let mut unreadable = Vec::new();
    let server = client.apiserver_version().await.context("cannot read the server's version");
    let server = note(&mut unreadable, server).map(|info| info.git_version);
    let (mut webhook, mut shims) = (Counts::default(), Counts::default());
    for found in note(&mut unreadable, installed_webhooks(client).await).unwrap_or_default() {
        *webhook.entry((found.version, found.image)).or_default() += 1;
    }
    let selection = ListParams::default().labels(SHIM_LABEL).fields(UNFINISHED);
    let count = |pod| {
        if let Some(image) = shim_image(&pod) {
            *shims.entry((shim_version(&pod), image.to_owned())).or_default() += 1;
        }
    };
    note(&mut unreadable, read::for_each(client, PODS, None, &selection, count).await);
    Versions { client: CLIENT_VERSION, server, webhook: used(webhook), shims: used(shims), unreadable }
}

fn used(counts: Counts) -> Vec<Used> {
    counts.into_iter().map(|((version, image), pods)| Used { version, image, pods }).collect()
}

/// Returns the version of the webhook that added the shim to a pod.
fn shim_version(pod: &Value) -> Option<String> {
    let status = pod["metadata"]["annotations"][STATUS_ANNOTATION].as_str()?;
    serde_json::from_str::<Value>(status).ok()?["version"].as_str().map(str::to_owned)
}

/// Returns the shim's image in a pod, from its containers or the volume.
fn shim_image(pod: &Value) -> Option<&str> {
    let init = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    let mut shims =
        init.filter(|container| container["name"] == SHIM_CONTAINER || container["name"] == INSTALL_CONTAINER);
    let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let volume = || volumes.find(|volume| volume["name"] == SHIM_VOLUME)?["image"]["reference"].as_str();
    shims.find_map(|container| container["image"].as_str()).or_else(volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fake::{Answer, client};
    use serde_json::json;

    const CONFIGURATIONS: &str = "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

    fn answers() -> [Answer; 5] {
        let service = json!({"namespace": "aux", "name": "istio-aux"});
        let configuration =
            json!({"metadata": {"name": "istio-aux"}, "webhooks": [{"clientConfig": {"service": service}}]});
        let webhook = json!({
            "metadata": {"labels": {"app.kubernetes.io/version": "0.2.0"}},
            "spec": {"containers": [{"name": "webhook", "image": "webhook:2"}]},
        });
        let native = json!({
            "metadata": {"annotations": {"istio-aux.io/status": "{\"version\": \"0.1.0\"}"}},
            "spec": {"initContainers": [{"name": "aux-shim", "image": "shim:1"}]},
        });
        let volume = json!({"spec": {"volumes": [{"name": "istio-aux", "image": {"reference": "shim:2"}}]}});
        let info = json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        let selector = json!({"metadata": {"name": "istio-aux"}, "apiVersion": "v1", "kind": "Service",
            "spec": {"selector": {"app": "istio-aux"}}});
        [
            Answer::ok("GET /version", info),
            Answer::list(CONFIGURATIONS, &[configuration]),
            Answer::ok("GET /api/v1/namespaces/aux/services/istio-aux", selector),
            Answer::list("GET /api/v1/namespaces/aux/pods?", &[webhook.clone(), webhook]),
            Answer::list("GET /api/v1/pods?", &[native.clone(), native, volume, json!({"spec": {}})]),
        ]
    }

    #[tokio::test]
    async fn images_are_counted_by_pods() {
        let (client, requests) = client(answers());
        let expected = json!({
            "client": CLIENT_VERSION, "server": "v1.34.4",
            "webhook": [{"version": "0.2.0", "image": "webhook:2", "pods": 2}],
            "shims": [
                {"version": null, "image": "shim:2", "pods": 1},
                {"version": "0.1.0", "image": "shim:1", "pods": 2},
            ],
        });
        assert_eq!(json!(versions(&client).await), expected);
        let pods = requests.all().into_iter().find(|line| line.starts_with("GET /api/v1/pods?")).unwrap();
        assert!(pods.contains("labelSelector=istio-aux.io%2Fshim"), "{pods}");
    }

    #[tokio::test]
    async fn unreadable_part_is_reported_beside_the_rest() {
        let refused = Answer::forbidden(CONFIGURATIONS, "no rights");
        let (client, _) = client([refused].into_iter().chain(answers()));
        let versions = versions(&client).await;
        assert_eq!(versions.unreadable, ["cannot read mutatingwebhookconfigurations: no rights"]);
        assert_eq!(versions.shims.len(), 2);
    }
}
