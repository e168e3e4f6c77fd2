//! Reads the state of a cluster as its user may. What could not be read is listed in words.

use anyhow::{Context, Result};
use contract::kind::{DEPLOYMENTS, Kind, NAMESPACES, PODS};
use contract::names::{NODE, NODE_RUNTIME_CLASS, PROXY_LABEL};
use contract::version::Version;
use inject::Settings;
use kube::Client;
use kube::api::ListParams;
use serde_json::Value;

use super::Scope;
use super::pods::PodFacts;
use super::tenant::{self, Tenant};
use crate::installation::{self, Webhook};
use crate::pods::{Selectors, label};
use crate::read;

const NODES: Kind = Kind::new("", "v1", "Node", "nodes");
const ENDPOINT_SLICES: Kind = Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
/// Lists the policy profile's kind in the versions that servers may have.
const POLICIES: [Kind; 2] = [policies("v1"), policies("v1beta1")];
const RUNTIME_CLASSES: Kind = Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses");
const DAEMON_SETS: Kind = Kind::new("apps", "v1", "DaemonSet", "daemonsets");
/// Selects the objects of the node agent's chart.
pub(crate) const NODE_AGENT: &str = "app.kubernetes.io/name=istio-aux-node";
/// Selects pods that have not ended: a finished pod is neither stuck nor changed.
pub(crate) const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

const fn policies(version: &'static str) -> Kind {
    Kind::new("admissionregistration.k8s.io", version, "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
}

/// Names the policy for pods that run to completion.
const POLICY: &str = "istio-aux-run-to-completion";
/// Names the webhook configuration that is called before Istio's injector.
pub(crate) const CONFIGURATION_NAME: &str = "istio-aux";
/// Names the one that is called after it, and adds the shim.
pub(crate) const SHIM_CONFIGURATION_NAME: &str = "zz-istio-aux";

/// Holds the state of a cluster. What could not be read is `None` or empty.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) server: Option<Version>,
    pub(super) nodes: Vec<Value>,
    /// Has all `MutatingWebhookConfigurations`.
    pub(super) configurations: Option<Vec<Value>>,
    /// Is true if the policy profile is installed.
    pub(super) has_policy: Option<bool>,
    /// Has the slices of the Service that our configuration names.
    pub(super) endpoints: Option<Vec<Value>>,
    /// Has the webhook's pods.
    pub(super) webhooks: Vec<Webhook>,
    pub(super) namespaces: Vec<Value>,
    /// Is the namespace to check, where there is none of this name.
    pub(super) missing_namespace: Option<String>,
    pub(super) pods: PodFacts,
    /// Has the objects of the tenant, if one namespace is checked and it is a tenant's.
    pub(super) tenant: Option<Tenant>,
    /// Is true if the runtime class for the node's proxies exists.
    pub(super) has_node_runtime_class: Option<bool>,
    /// Has the `DaemonSets` of the node agent.
    pub(super) node_agents: Option<Vec<Value>>,
    /// Has the Deployments of Istio's control planes.
    pub(super) istiods: Vec<Value>,
    /// Says what could not be read, and why.
    pub(super) unreadable: Vec<String>,
}

/// Reads all but namespaces and pods. `Err` if the server does not answer.
pub(super) async fn take_without_pods(client: &Client) -> Result<Snapshot> {
    let info = client.apiserver_version().await.context("the API server does not answer")?;
    let server = Version::parse(&format!("{}.{}", info.major, info.minor));
    let mut snapshot = Snapshot { server, ..Snapshot::default() };
    let unreadable = &mut snapshot.unreadable;
    snapshot.configurations = note(unreadable, installation::configurations(client).await);
    if let Some((namespace, name)) = snapshot.configurations.as_deref().and_then(webhook_service) {
        let slices = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
        snapshot.endpoints = note(unreadable, read::list(client, ENDPOINT_SLICES, Some(&namespace), &slices).await);
        let webhooks = installation::webhooks(client, snapshot.configurations.as_deref().unwrap_or_default()).await;
        snapshot.webhooks = note(unreadable, webhooks).unwrap_or_default();
    }
    let policy = read::get_first(client, POLICIES, None, POLICY).await;
    snapshot.has_policy = note(unreadable, policy).map(|found| found.is_some());
    let nodes = read::list(client, NODES, None, &ListParams::default()).await;
    snapshot.nodes = note(unreadable, nodes).unwrap_or_default();
    let istiods = ListParams::default().labels("app=istiod");
    snapshot.istiods = note(unreadable, read::list(client, DEPLOYMENTS, None, &istiods).await).unwrap_or_default();
    Ok(snapshot)
}

impl Snapshot {
    /// Returns the selectors of the installed webhook.
    pub(super) fn selectors(&self) -> Selectors {
        Selectors::of(self.configurations.as_deref().unwrap_or_default())
    }

    /// Reads namespaces and pods as well. `Err` if the selector is none.
    pub(super) async fn add_pods(&mut self, client: &Client, scope: &Scope, settings: &Settings) -> Result<()> {
        let selectors = self.selectors();
        let unreadable = &mut self.unreadable;
        let namespace = scope.namespace.as_deref();
        let namespaces = match namespace {
            Some(name) => read::get(client, NAMESPACES, None, name).await.map(|found| {
                self.missing_namespace = found.is_none().then(|| name.to_owned());
                found.into_iter().collect()
            }),
            None => read::list(client, NAMESPACES, None, &ListParams::default()).await,
        };
        self.namespaces = note(unreadable, namespaces).unwrap_or_default();
        let mut pods = PodFacts::default();
        // Each pod's decision is of interest in one namespace, and too much for a whole cluster.
        let decide = namespace.and(self.namespaces.first()).map(|found| (found, &selectors, settings));
        let selection = ListParams::default().labels(&scope.selector).fields(UNFINISHED);
        let listed = read::for_each(client, PODS, namespace, &selection, |pod| pods.add(&pod, decide)).await;
        if listed.as_ref().err().and_then(read::status_of) == Some(400) {
            return listed;
        }
        // What was read before an error counts.
        self.pods = pods;
        note(unreadable, listed);
        if let (Some(name), [found]) = (namespace, self.namespaces.as_slice())
            && tenant::is_tenant(found)
        {
            self.tenant = Some(tenant::read(client, found, name, unreadable).await);
        }
        if self.namespaces.iter().any(|namespace| label(namespace, PROXY_LABEL) == Some(NODE)) {
            let class = read::get(client, RUNTIME_CLASSES, None, NODE_RUNTIME_CLASS).await;
            self.has_node_runtime_class = note(unreadable, class).map(|found| found.is_some());
            let agents = ListParams::default().labels(NODE_AGENT);
            self.node_agents = note(unreadable, read::list(client, DAEMON_SETS, None, &agents).await);
        }
        Ok(())
    }
}

/// Returns what was read. An error is added to the list instead.
pub(crate) fn note<T>(unreadable: &mut Vec<String>, read: Result<T>) -> Option<T> {
    read.map_err(|error| unreadable.push(api::describe_error(error.as_ref()))).ok()
}

/// Returns namespace and name of the Service that our configuration calls.
pub(crate) fn webhook_service(configurations: &[Value]) -> Option<(String, String)> {
    let ours = configurations.iter().find(|configuration| configuration["metadata"]["name"] == CONFIGURATION_NAME)?;
    let service = &ours["webhooks"][0]["clientConfig"]["service"];
    Some((service["namespace"].as_str()?.to_owned(), service["name"].as_str()?.to_owned()))
}
