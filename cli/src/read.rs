//! Reads objects of any kind as raw JSON, page by page, with the caller's own rights. Errors name what could not be read.

use anyhow::{Context, Result};
use contract::kind::Kind;
use kube::Client;
use kube::api::ListParams;
use serde_json::Value;

/// `ClusterRoleBindings`.
pub(crate) const CLUSTER_ROLE_BINDINGS: Kind =
    Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings");
/// Limits the objects that one request returns.
const PAGE_LIMIT: u32 = 500;

/// Returns a label selector for `key: value` pairs; `None` for an empty one, which would select everything.
pub(crate) fn selector_of(labels: &Value) -> Option<String> {
    let pairs = labels.as_object()?.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    let selector = pairs.collect::<Vec<_>>().join(",");
    (!selector.is_empty()).then_some(selector)
}

/// Reads the selected objects of a kind page by page, so that only one page is in memory.
pub(crate) async fn for_each(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    selection: &ListParams,
    mut each: impl FnMut(Value),
) -> Result<()> {
    let objects = api::objects(client, kind, namespace);
    let mut selection = selection.clone().limit(PAGE_LIMIT);
    loop {
        let page = objects.list(&selection).await.with_context(|| unreadable(kind, namespace))?;
        for object in page.items {
            each(serde_json::to_value(object)?);
        }
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => selection = selection.continue_token(&token),
            _ => return Ok(()),
        }
    }
}

/// Lists the selected objects of a kind.
pub(crate) async fn list(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    selection: &ListParams,
) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for_each(client, kind, namespace, selection, |object| all.push(object)).await?;
    Ok(all)
}

/// Lists the selected objects of a kind; none if the server does not have the kind.
pub(crate) async fn list_if_served(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    selection: &ListParams,
) -> Result<Vec<Value>> {
    match list(client, kind, namespace, selection).await {
        Err(error) if status_of(&error) == Some(404) => Ok(Vec::new()),
        read => read,
    }
}

/// Returns the status code of the server's error; `None` for another error.
pub(crate) fn status_of(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref()? {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Reads one object; `None` if the object does not exist, or the server does not have the kind.
pub(crate) async fn get(client: &Client, kind: Kind, namespace: Option<&str>, name: &str) -> Result<Option<Value>> {
    api::get(client, kind, namespace, name).await.with_context(|| unreadable(kind, namespace))
}

/// Returns namespace and name of the account to which a `ClusterRoleBinding` gives rights. Labels do not identify istio-aux' pods: any
/// user may set them.
pub(crate) fn account_of(binding: &Value) -> Option<[String; 2]> {
    let text = |field: &str| binding["subjects"][0][field].as_str().map(str::to_owned);
    Some([text("namespace")?, text("name")?])
}

/// Reads one object, in the first of these kinds that the server has it in.
pub(crate) async fn get_first(
    client: &Client,
    kinds: impl IntoIterator<Item = Kind>,
    namespace: Option<&str>,
    name: &str,
) -> Result<Option<Value>> {
    for kind in kinds {
        if let Some(object) = get(client, kind, namespace, name).await? {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

fn unreadable(kind: Kind, namespace: Option<&str>) -> String {
    let place = namespace.map_or(String::new(), |namespace| format!(" in {namespace}"));
    format!("cannot read {}{place}", kind.plural)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fake::{Answer, client};
    use contract::kind::PODS;
    use serde_json::json;

    #[test]
    fn empty_selector_is_none() {
        assert_eq!(selector_of(&json!({})), None);
        assert_eq!(selector_of(&json!({"a": "b", "c": "d"})).as_deref(), Some("a=b,c=d"));
    }

    #[tokio::test]
    async fn list_follows_the_continue_token_to_the_end() {
        let first = json!({"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]});
        let last = json!({"metadata": {}, "items": [{"metadata": {"name": "b"}}]});
        let pods = "GET /api/v1/namespaces/team/pods?";
        let (client, requests) = client([Answer::ok(pods, last).to("continue=next"), Answer::ok(pods, first)]);
        let pods = list(&client, PODS, Some("team"), &ListParams::default().labels("a=b")).await.unwrap();
        let names: Vec<_> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"], "{:?}", requests.all());
        assert!(requests.all().iter().all(|line| line.contains("limit=500") && line.contains("labelSelector=a%3Db")));
        assert_eq!(requests.all().len(), 2);
    }

    #[tokio::test]
    async fn forbidden_list_has_the_servers_message() {
        let (client, _) = client([Answer::forbidden("GET /api/v1/nodes", "nodes is forbidden")]);
        let nodes = Kind::new("", "v1", "Node", "nodes");
        let error = list(&client, nodes, None, &ListParams::default()).await.unwrap_err();
        assert_eq!(api::describe_error(error.as_ref()), "cannot read nodes: nodes is forbidden");
    }
}
