//! Access to a cluster with the caller's own rights. Objects are raw JSON, and errors are one line for a person.

mod connection;
mod dry_run;
#[cfg(test)]
pub(crate) mod fake;

use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::Request;
use kube::core::gvk::GroupVersionKind;
use kube::core::metadata::ListMeta;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::sleep;

pub(crate) use self::connection::Connection;
pub(crate) use self::dry_run::{DryRun, dry_run_pod};
use crate::causes::with_causes;

/// How many objects one request returns at most.
const PAGE_LIMIT: u32 = 500;
/// How often a pod is read while its end is awaited.
const POD_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A kind of object: group, version, kind and plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
);

/// Pods.
pub(crate) const PODS: Kind = Kind("", "v1", "Pod", "pods");
/// Namespaces.
pub(crate) const NAMESPACES: Kind = Kind("", "v1", "Namespace", "namespaces");
/// Deployments.
pub(crate) const DEPLOYMENTS: Kind = Kind("apps", "v1", "Deployment", "deployments");
/// Services.
pub(crate) const SERVICES: Kind = Kind("", "v1", "Service", "services");
/// `MutatingWebhookConfigurations`.
pub(crate) const WEBHOOK_CONFIGURATIONS: Kind =
    Kind("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");

impl Kind {
    /// `apiVersion`, as manifests have it.
    pub(crate) fn api_version(self) -> String {
        if self.0.is_empty() { self.1.to_owned() } else { format!("{}/{}", self.0, self.1) }
    }
}

/// Which objects to list: all that match both selectors.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Selection<'a> {
    pub(crate) namespace: Option<&'a str>,
    pub(crate) labels: &'a str,
    pub(crate) fields: &'a str,
}

impl<'a> Selection<'a> {
    /// All objects of one namespace, or of all.
    pub(crate) fn in_namespace(namespace: Option<&'a str>) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// The same, limited by a label selector.
    pub(crate) fn labels(self, labels: &'a str) -> Self {
        Self { labels, ..self }
    }

    /// The same, limited by a field selector.
    pub(crate) fn fields(self, fields: &'a str) -> Self {
        Self { fields, ..self }
    }
}

/// What of each object is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parts {
    All,
    Metadata,
}

/// One page of a list.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<Value>>,
}

/// Reads the objects of a kind page by page, so that only one page is in memory. `Err` names what could not be read.
pub(crate) async fn for_each(
    client: &Client,
    kind: Kind,
    selection: Selection<'_>,
    each: impl FnMut(Value),
) -> Result<(), String> {
    let read = read_pages(client, kind, selection, Parts::All, each).await;
    read.map_err(|error| unreadable(kind, selection.namespace, error))
}

/// All objects of a kind.
pub(crate) async fn list(client: &Client, kind: Kind, selection: Selection<'_>) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    for_each(client, kind, selection, |object| all.push(object)).await?;
    Ok(all)
}

/// All objects of a kind; none where the server does not have the kind.
pub(crate) async fn list_if_served(
    client: &Client,
    kind: Kind,
    selection: Selection<'_>,
) -> Result<Vec<Value>, String> {
    list_parts(client, kind, selection, Parts::All).await
}

/// The metadata of all objects of a kind; none where the server does not have the kind.
pub(crate) async fn list_metadata(client: &Client, kind: Kind, selection: Selection<'_>) -> Result<Vec<Value>, String> {
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

/// One object; `None` where there is none of that name, or the server does not have the kind.
pub(crate) async fn get(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<Value>, String> {
    try_get(client, kind, namespace, name).await.map_err(|error| unreadable(kind, namespace, error))
}

/// The same, with kube's error.
pub(crate) async fn try_get(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    name: &str,
) -> kube::Result<Option<Value>> {
    match objects(client, kind, namespace).get(name).await {
        Ok(object) => serde_json::to_value(object).map(Some).map_err(kube::Error::SerdeError),
        // Not `get_opt`: about a kind that it does not have, the server answers 404 in plain text, without a reason.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
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

/// A pod's state when the wait for its end was over.
#[derive(Debug)]
pub(crate) enum PodCompletion {
    /// The pod reached its final phase.
    Terminated(Value),
    /// The pod was deleted.
    Deleted,
    /// The pod has not reached its final phase in time.
    TimedOut(Value),
}

/// Waits for a pod's final phase.
pub(crate) async fn wait_for_pod(
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

fn unreadable(Kind(.., plural): Kind, namespace: Option<&str>, error: kube::Error) -> String {
    let place = namespace.map_or(String::new(), |namespace| format!(" in {namespace}"));
    format!("cannot read {plural}{place}: {}", describe_error(error))
}

/// An error of the API in one line: the server's own message where it answered.
pub(crate) fn describe_error(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        // Its own message is a prefix and the cause's message.
        kube::Error::Service(cause) => with_causes(cause.as_ref()),
        other => with_causes(&other),
    }
}

#[cfg(test)]
mod tests {
    use super::fake::{Answer, client};
    use super::*;
    use serde_json::json;

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
        let nodes = Kind("", "v1", "Node", "nodes");
        let error = list(&client, nodes, Selection::default()).await.unwrap_err();
        assert_eq!(error, "cannot read nodes: nodes is forbidden");
    }
}
