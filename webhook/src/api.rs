//! Reading a cluster as its user may: objects as raw JSON, and what could not be read, in words.

use std::time::{Duration, Instant};

use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::config::KubeConfigOptions;
use kube::core::gvk::GroupVersionKind;
use kube::{Client, Config};
use serde_json::Value;
use tokio::time::sleep;

use crate::causes::with_causes;

/// How many objects are asked for at once.
const PAGE: u32 = 500;
/// Pause between two looks at a pod that is to end.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A kind of object: group, version, kind and plural.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
);

/// Pods.
pub(crate) const PODS: Kind = Kind("", "v1", "Pod", "pods");

/// A client for the cluster of the user's kubeconfig, or of a context of it; in a pod without one, of the pod's cluster.
pub(crate) async fn client(context: Option<&str>) -> Result<Client, String> {
    let config = match context {
        Some(context) => {
            let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
            Config::from_kubeconfig(&options).await.map_err(|error| with_causes(&error))
        }
        None => Config::infer().await.map_err(|error| with_causes(&error)),
    };
    let config =
        config.map_err(|reason| format!("no cluster: {reason}; set KUBECONFIG, or see kubectl config get-contexts"))?;
    Client::try_from(config).map_err(|error| format!("no cluster: {}", with_causes(&error)))
}

/// All objects of a kind, of one namespace or of all. `Err` says what could not be read, and why.
pub(crate) async fn list(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    labels: &str,
) -> Result<Vec<Value>, String> {
    let api = objects(client, kind, namespace);
    let mut parameters = ListParams::default().labels(labels).limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&parameters).await.map_err(|error| unread(kind, namespace, error))?;
        all.extend(page.items.iter().filter_map(|object| serde_json::to_value(object).ok()));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => parameters = parameters.continue_token(&token),
            _ => return Ok(all),
        }
    }
}

/// One object; `None` where it is not there.
pub(crate) async fn get(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<Value>, String> {
    let object =
        objects(client, kind, namespace).get_opt(name).await.map_err(|error| unread(kind, namespace, error))?;
    Ok(object.and_then(|object| serde_json::to_value(object).ok()))
}

/// The objects of a kind.
pub(crate) fn objects(
    client: &Client,
    Kind(group, version, kind, plural): Kind,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// How waiting for a pod's end came out.
#[derive(Debug)]
pub(crate) enum End {
    /// The pod as it has ended.
    Ended(Value),
    /// It was deleted meanwhile.
    Deleted,
    /// The pod as it is, still.
    Late(Value),
}

/// Waits for a pod's final phase.
pub(crate) async fn until_pod_ended(
    client: &Client,
    namespace: &str,
    name: &str,
    within: Duration,
) -> Result<End, String> {
    let began = Instant::now();
    loop {
        let Some(pod) = get(client, PODS, Some(namespace), name).await? else { return Ok(End::Deleted) };
        if matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            return Ok(End::Ended(pod));
        }
        if began.elapsed() >= within {
            return Ok(End::Late(pod));
        }
        sleep(LOOK_EVERY).await;
    }
}

fn unread(Kind(.., plural): Kind, namespace: Option<&str>, error: kube::Error) -> String {
    let place = namespace.map_or(String::new(), |namespace| format!(" in {namespace}"));
    format!("cannot read {plural}{place}: {}", in_words(error))
}

/// What an API server says of a refusal, or what came between.
pub(crate) fn in_words(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => with_causes(&other),
    }
}
