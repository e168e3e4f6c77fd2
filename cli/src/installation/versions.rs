//! Reads the versions in a cluster: the webhook's from its pods, the shim's from the pods that have it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use contract::kind::{PODS, SERVICES, WEBHOOK_CONFIGURATIONS};
use contract::names::{INSTALL_CONTAINER, SHIM_CONTAINER, SHIM_LABEL, SHIM_VOLUME};
use kube::Client;
use kube::api::ListParams;
use serde::Serialize;
use serde_json::Value;

use crate::check::{UNFINISHED, note, webhook_service};
use crate::read::{self, selector_of};

/// Holds the versions in a cluster. Images are counted by pods.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Versions {
    pub(crate) client: String,
    pub(crate) server: Option<String>,
    pub(crate) webhook: BTreeMap<String, usize>,
    pub(crate) shims: BTreeMap<String, usize>,
    /// Says what could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unreadable: Vec<String>,
}

/// Returns the version of this program.
pub(crate) fn client_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Reads the versions in a cluster.
pub(crate) async fn versions(client: &Client) -> Versions {
    let mut unreadable = Vec::new();
    let server = client.apiserver_version().await.context("cannot read the server's version");
    let server = note(&mut unreadable, server).map(|info| info.git_version);
    let webhook = note(&mut unreadable, webhook_images(client).await).unwrap_or_default();
    let mut shims = BTreeMap::new();
    let selection = ListParams::default().labels(SHIM_LABEL).fields(UNFINISHED);
    let count = |pod| {
        if let Some(image) = shim_image(&pod) {
            *shims.entry(image.to_owned()).or_default() += 1;
        }
    };
    note(&mut unreadable, read::for_each(client, PODS, None, &selection, count).await);
    Versions { client: client_version(), server, webhook, shims, unreadable }
}

/// Returns the images of the pods behind the Service that the webhook configuration names.
async fn webhook_images(client: &Client) -> Result<BTreeMap<String, usize>> {
    let mut images = BTreeMap::new();
    let configurations = read::list(client, WEBHOOK_CONFIGURATIONS, None, &ListParams::default()).await?;
    let Some((namespace, service)) = webhook_service(&configurations) else { return Ok(images) };
    let Some(service) = read::get(client, SERVICES, Some(&namespace), &service).await? else { return Ok(images) };
    let Some(selector) = selector_of(&service["spec"]["selector"]) else { return Ok(images) };
    let selection = ListParams::default().labels(&selector).fields(UNFINISHED);
    for pod in read::list(client, PODS, Some(&namespace), &selection).await? {
        let containers = pod["spec"]["containers"].as_array();
        if let Some(image) = containers.into_iter().flatten().find_map(webhook_image) {
            *images.entry(image.to_owned()).or_default() += 1;
        }
    }
    Ok(images)
}

/// Returns the image of the container that runs the webhook, by its program or its name.
fn webhook_image(container: &Value) -> Option<&str> {
    let words = ["command", "args"].map(|field| container[field].as_array());
    let serves = words
        .into_iter()
        .flatten()
        .flatten()
        .any(|word| word.as_str().is_some_and(|word| word.ends_with("istio-aux-webhook")));
    let image = container["image"].as_str()?;
    (serves || container["name"] == "webhook").then_some(image)
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
        let webhook = json!({"spec": {"containers": [{"name": "webhook", "image": "webhook:2"}]}});
        let native = json!({"spec": {"initContainers": [{"name": "aux-shim", "image": "shim:1"}]}});
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
        insta::assert_json_snapshot!(versions(&client).await, @r#"
        {
          "client": "0.1.0",
          "server": "v1.34.4",
          "webhook": {
            "webhook:2": 2
          },
          "shims": {
            "shim:1": 2,
            "shim:2": 1
          }
        }
        "#);
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
