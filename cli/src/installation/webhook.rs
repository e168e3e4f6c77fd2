//! Reads what the webhook in a cluster is: its pods are behind the Service that its configuration names.

use anyhow::Result;
use contract::kind::{PODS, SERVICES, WEBHOOK_CONFIGURATIONS};
use inject::Settings;
use inject::args::settings_of;
use kube::Client;
use kube::api::ListParams;
use serde_json::Value;

use crate::check::{UNFINISHED, webhook_service};
use crate::pods::label;
use crate::read::{self, selector_of};

/// Holds what a pod of the webhook is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Webhook {
    pub(crate) image: String,
    /// Is the version of the installation, by Helm's label or the image's tag.
    pub(crate) version: Option<String>,
    /// Has its settings; `None` where its arguments are not in the pod, or this program does not know them.
    pub(crate) settings: Option<Settings>,
}

/// Reads the webhook configurations of a cluster.
pub(crate) async fn configurations(client: &Client) -> Result<Vec<Value>> {
    read::list(client, WEBHOOK_CONFIGURATIONS, None, &ListParams::default()).await
}

/// Reads the pods of the webhook that these configurations name; none where it is not installed.
pub(crate) async fn webhooks(client: &Client, configurations: &[Value]) -> Result<Vec<Webhook>> {
    let Some((namespace, selector)) = pods_of(client, configurations).await? else { return Ok(Vec::new()) };
    let selection = ListParams::default().labels(&selector).fields(UNFINISHED);
    let pods = read::list(client, PODS, Some(&namespace), &selection).await?;
    Ok(pods.iter().filter_map(webhook).collect())
}

/// Returns the namespace and the selector of the webhook's pods; `None` where it is not installed.
pub(crate) async fn pods_of(client: &Client, configurations: &[Value]) -> Result<Option<(String, String)>> {
    let Some((namespace, service)) = webhook_service(configurations) else { return Ok(None) };
    let service = read::get(client, SERVICES, Some(&namespace), &service).await?;
    let selector = service.and_then(|service| selector_of(&service["spec"]["selector"]));
    Ok(selector.map(|selector| (namespace, selector)))
}

/// Reads the pods of the webhook in the cluster.
pub(super) async fn installed_webhooks(client: &Client) -> Result<Vec<Webhook>> {
    webhooks(client, &configurations(client).await?).await
}

/// Returns the settings of the webhook in the cluster, where they can be read.
pub(crate) async fn installed_settings(client: &Client, configurations: &[Value]) -> Option<Settings> {
    webhooks(client, configurations).await.ok()?.into_iter().find_map(|webhook| webhook.settings)
}

fn webhook(pod: &Value) -> Option<Webhook> {
    let container = pod["spec"]["containers"].as_array()?.iter().find(|container| runs_webhook(container))?;
    let image = container["image"].as_str()?;
    Some(Webhook {
        image: image.to_owned(),
        // The chart's label says nothing of an image whose tag was pinned.
        version: tag(image).filter(is_version).or_else(|| label(pod, "app.kubernetes.io/version")).map(str::to_owned),
        settings: container["args"].as_array().and_then(|_| settings_of(&arguments(container)).ok()),
    })
}

/// Returns the tag of an image's reference; none where it has a digest.
fn tag(image: &str) -> Option<&str> {
    let (_, name) = image.rsplit_once('/').unwrap_or_default();
    (!name.contains('@')).then(|| name.split_once(':').map(|(_, tag)| tag))?
}

fn is_version(tag: &&str) -> bool {
    tag.starts_with(|first: char| first.is_ascii_digit())
}

/// Returns true for the container that runs the webhook, by its program or its name.
fn runs_webhook(container: &Value) -> bool {
    let words = ["command", "args"].map(|field| container[field].as_array());
    let mut words = words.into_iter().flatten().flatten().filter_map(Value::as_str);
    container["name"] == "webhook" || words.any(|word| word.ends_with("istio-aux-webhook"))
}

/// Returns a container's arguments, with `$(NAME)` replaced by the values of its environment, as the kubelet does.
fn arguments(container: &Value) -> Vec<String> {
    let env = || container["env"].as_array().into_iter().flatten();
    let words = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let expand = |word: &str| {
        env().fold(word.to_owned(), |word, variable| {
            let [name, value] = ["name", "value"].map(|field| variable[field].as_str().unwrap_or_default());
            word.replace(&format!("$({name})"), value)
        })
    };
    words.map(expand).collect()
}

#[cfg(test)]
mod tests {
    use inject::{Delivery, Hold};
    use serde_json::json;

    use super::*;

    #[test]
    fn webhook_is_read_from_its_pod() {
        let pod = json!({
            "metadata": {"labels": {"app.kubernetes.io/version": "0.1.0"}},
            "spec": {"containers": [{
                "name": "webhook", "image": "webhook@sha256:1",
                "args": ["--shim-image=$(SHIM_IMAGE)", "--hold", "never", "--self-signed", "--delivery=image-volume", "--native-sidecars", "disabled"],
                "env": [{"name": "SHIM_IMAGE", "value": "shim:2"}],
            }]},
        });
        let found = webhook(&pod).unwrap();
        assert_eq!((&*found.image, found.version.as_deref()), ("webhook@sha256:1", Some("0.1.0")));
        let settings = found.settings.unwrap();
        assert_eq!(
            (&*settings.shim_image, settings.hold, settings.delivery),
            ("shim:2", Hold::Never, Delivery::ImageVolume)
        );
        assert!(!settings.native_sidecars);
        let pinned = |image: &str| {
            let mut pod = pod.clone();
            pod["spec"]["containers"][0]["image"] = json!(image);
            webhook(&pod).unwrap().version.unwrap()
        };
        assert_eq!(["r/webhook:0.0.9", "r/webhook:stable"].map(pinned), ["0.0.9", "0.1.0"]);
        let without = json!({"spec": {"containers": [{"name": "webhook", "image": "r:5000/x/webhook:0.1.1"}]}});
        let found = webhook(&without).unwrap();
        assert_eq!((found.version.as_deref(), found.settings), (Some("0.1.1"), None), "an image may have arguments");
        assert_eq!(webhook(&json!({"spec": {"containers": [{"name": "other", "image": "x"}]}})), None);
    }
}
