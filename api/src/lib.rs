//! Reads objects of any kind from a cluster, as raw JSON, with the caller's own rights. Errors are one line for a person.

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "fake"))]
pub mod fake;

use std::time::{Duration, Instant};

use contract::error_chain::display_chain;
use contract::kind::{Kind, PODS};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::Request;
use kube::core::gvk::GroupVersionKind;
use kube::core::metadata::ListMeta;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::sleep;

/// How many objects one request returns at most.
const PAGE_LIMIT: u32 = 500;
/// How often a pod is read while its end is awaited.
const POD_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Selects the objects of a list: all that match both selectors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection<'a> {
    /// The namespace; `None` means all.
    pub namespace: Option<&'a str>,
    /// A label selector.
    pub labels: &'a str,
    /// A field selector.
    pub fields: &'a str,
}

impl<'a> Selection<'a> {
    /// Selects all objects of one namespace, or of all.
    #[must_use]
    pub fn in_namespace(namespace: Option<&'a str>) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// Limits the selection by a label selector.
    #[must_use]
    pub fn labels(self, labels: &'a str) -> Self {
        Self { labels, ..self }
    }

    /// Limits the selection by a field selector.
    #[must_use]
    pub fn fields(self, fields: &'a str) -> Self {
        Self { fields, ..self }
    }
}

/// Returns a label selector for `key: value` pairs; `None` for an empty one, which would select everything.
#[must_use]
pub fn selector_of(labels: &Value) -> Option<String> {
    let pairs = labels.as_object()?.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    let selector = pairs.collect::<Vec<_>>().join(",");
    (!selector.is_empty()).then_some(selector)
}

/// Selects the parts of each object that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parts {
    All,
    Metadata,
}

/// Holds one page of a list.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<Value>>,
}

/// Reads the objects of a kind page by page, so that only one page is in memory. `Err` names what could not be read.
pub async fn for_each(
    client: &Client,
    kind: Kind,
    selection: Selection<'_>,
    each: impl FnMut(Value),
) -> Result<(), String> {
    let read = read_pages(client, kind, selection, Parts::All, each).await;
    read.map_err(|error| unreadable(kind, selection.namespace, error))
}

/// Lists the objects of a kind.
pub async fn list(client: &Client, kind: Kind, selection: Selection<'_>) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    for_each(client, kind, selection, |object| all.push(object)).await?;
    Ok(all)
}

/// Lists the objects of a kind; none where the server does not have the kind.
pub async fn list_if_served(client: &Client, kind: Kind, selection: Selection<'_>) -> Result<Vec<Value>, String> {
    list_parts(client, kind, selection, Parts::All).await
}

/// Lists the metadata of the objects of a kind; none where the server does not have the kind.
pub async fn list_metadata(client: &Client, kind: Kind, selection: Selection<'_>) -> Result<Vec<Value>, String> {
    list_parts(client, kind, selection, Parts::Metadata).await
}

async fn list_parts(client: &Client, kind: Kind, selection: Selection<'_>, parts: Parts) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    match read_pages(client, kind, selection, parts, |object| all.push(object)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(unreadable(kind, selection.namespace, error)),
        Ok(()) => Ok(all),
    }
}

async fn read_pages(
    client: &Client,
    kind: Kind,
    selection: Selection<'_>,
    parts: Parts,
    mut each: impl FnMut(Value),
) -> kube::Result<()> {
    let resource = Request::new(objects(client, kind, selection.namespace).resource_url());
    let mut parameters = ListParams::default().labels(selection.labels).fields(selection.fields).limit(PAGE_LIMIT);
    loop {
        let request = match parts {
            Parts::All => resource.list(&parameters),
            Parts::Metadata => resource.list_metadata(&parameters),
        };
        let page: Page = client.request(request.map_err(kube::Error::BuildRequest)?).await?;
        page.items.into_iter().flatten().for_each(&mut each);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => parameters = parameters.continue_token(&token),
            _ => return Ok(()),
        }
    }
}

/// Reads one object; `None` where there is none of that name, or the server does not have the kind.
pub async fn get(client: &Client, kind: Kind, namespace: Option<&str>, name: &str) -> Result<Option<Value>, String> {
    try_get(client, kind, namespace, name).await.map_err(|error| unreadable(kind, namespace, error))
}

/// Reads one object as [`get`] does, and returns kube's error.
pub async fn try_get(client: &Client, kind: Kind, namespace: Option<&str>, name: &str) -> kube::Result<Option<Value>> {
    match objects(client, kind, namespace).get(name).await {
        Ok(object) => serde_json::to_value(object).map(Some).map_err(kube::Error::SerdeError),
        // Not `get_opt`: about a kind that it does not have, the server answers 404 in plain text, without a reason.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns kube's client for the objects of a kind.
#[must_use]
pub fn objects(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(kind.group, kind.version, kind.name), kind.plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Holds a pod's state when the wait for its end was over.
#[derive(Debug)]
pub enum PodCompletion {
    /// The pod reached its final phase.
    Terminated(Value),
    /// The pod was deleted.
    Deleted,
    /// The pod has not reached its final phase in time.
    TimedOut(Value),
}

/// Waits for a pod's final phase.
pub async fn wait_for_pod(
    client: &Client,
    namespace: &str,
    name: &str,
    timeout: Duration,
) -> Result<PodCompletion, String> {
    let began = Instant::now();
    loop {
        let Some(pod) = get(client, PODS, Some(namespace), name).await? else { return Ok(PodCompletion::Deleted) };
        if matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            return Ok(PodCompletion::Terminated(pod));
        }
        if began.elapsed() >= timeout {
            return Ok(PodCompletion::TimedOut(pod));
        }
        sleep(POD_POLL_INTERVAL).await;
    }
}

fn unreadable(kind: Kind, namespace: Option<&str>, error: kube::Error) -> String {
    let place = namespace.map_or(String::new(), |namespace| format!(" in {namespace}"));
    format!("cannot read {}{place}: {}", kind.plural, describe_error(error))
}

/// Describes an error of the API in one line: the server's own message where it answered.
#[must_use]
pub fn describe_error(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        // Its own message is a prefix and the cause's message.
        kube::Error::Service(cause) => display_chain(cause.as_ref()),
        other => display_chain(&other),
    }
}

#[cfg(test)]
mod tests {
    use super::fake::{Answer, client};
    use super::*;
    use contract::kind::NAMESPACES;
    use serde_json::json;

    #[test]
    fn empty_selector_is_none() {
        assert_eq!(selector_of(&json!({})), None);
        assert_eq!(selector_of(&json!({"a": "b", "c": "d"})).as_deref(), Some("a=b,c=d"));
    }

    #[tokio::test]
    async fn lists_follow_the_continue_token_to_their_last_page() {
        let first = json!({"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]});
        let last = json!({"metadata": {}, "items": [{"metadata": {"name": "b"}}]});
        let pods = "GET /api/v1/namespaces/team/pods?";
        let (client, requests) = client([Answer::ok(pods, last).to("continue=next"), Answer::ok(pods, first)]);
        let pods = list(&client, PODS, Selection::in_namespace(Some("team")).labels("a=b")).await.unwrap();
        let names: Vec<_> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"], "{:?}", requests.all());
        assert!(requests.all().iter().all(|line| line.contains("limit=500") && line.contains("labelSelector=a%3Db")));
        assert_eq!(requests.all().len(), 2);
    }

    #[tokio::test]
    async fn metadata_lists_ask_for_metadata_only() {
        let (client, requests) = client([Answer::ok("GET /api/v1/namespaces?", json!({"items": null}))]);
        assert!(list_metadata(&client, NAMESPACES, Selection::default()).await.unwrap().is_empty());
        assert_eq!(requests.accepted(), ["application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"]);
    }

    #[tokio::test]
    async fn a_refused_list_is_named_with_the_servers_message() {
        let (client, _) = client([Answer::forbidden("GET /api/v1/nodes", "nodes is forbidden")]);
        let nodes = Kind::new("", "v1", "Node", "nodes");
        let error = list(&client, nodes, Selection::default()).await.unwrap_err();
        assert_eq!(error, "cannot read nodes: nodes is forbidden");
    }
}
