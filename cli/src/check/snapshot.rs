//! The state of a cluster as its user may read it. What could not be read is listed in words.

use crate::pods::label;
use contract::names::{NODE, NODE_RUNTIME_CLASS, PROXY_LABEL};
use inject::Settings;
use kube::Client;
use serde_json::Value;

use super::Scope;
use super::pods::PodFacts;
use super::tenant::{self, Tenant};
use api::{Selection, describe_error};
use contract::kind::{CONFIG_MAPS, DEPLOYMENTS, Kind, NAMESPACES, PODS, WEBHOOK_CONFIGURATIONS};
use contract::version::Version;

const NODES: Kind = Kind::new("", "v1", "Node", "nodes");
const ENDPOINT_SLICES: Kind = Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
/// The policy profile's kind, in the versions that servers may have.
const POLICIES: [Kind; 2] = [policies("v1"), policies("v1beta1")];
const RUNTIME_CLASSES: Kind = Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses");
const DAEMON_SETS: Kind = Kind::new("apps", "v1", "DaemonSet", "daemonsets");
/// The label of the node agent's chart.
const NODE_AGENT: &str = "app.kubernetes.io/name=istio-aux-node";
/// Pods that have not ended: a finished pod is neither stuck nor changed.
const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

const fn policies(version: &'static str) -> Kind {
    Kind::new("admissionregistration.k8s.io", version, "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
}

/// The name of the policy for pods that run to completion.
const POLICY: &str = "istio-aux-run-to-completion";
/// The name of our webhook configuration.
pub(crate) const OURS: &str = "istio-aux";

/// A cluster. What could not be read is `None` or empty.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) server: Option<Version>,
    pub(super) nodes: Vec<Value>,
    /// All `MutatingWebhookConfigurations`.
    pub(super) configurations: Option<Vec<Value>>,
    /// Whether the policy profile is installed.
    pub(super) has_policy: bool,
    /// The slices of the Service that our configuration names.
    pub(super) endpoints: Option<Vec<Value>>,
    /// The metadata of the namespaces.
    pub(super) namespaces: Vec<Value>,
    pub(super) pods: PodFacts,
    /// The one namespace that is checked, where it is a tenant's of Kubeflow.
    pub(super) tenant: Option<Tenant>,
    /// Whether there is the runtime class of pods whose proxies run beside them.
    pub(super) has_node_runtime_class: Option<bool>,
    /// The `DaemonSets` of the node agent.
    pub(super) node_agents: Option<Vec<Value>>,
    /// Istio's control planes.
    pub(super) istiods: Vec<Value>,
    /// The mesh configuration of each control plane, in YAML.
    pub(super) mesh_configs: Vec<String>,
    /// What could not be read, and why.
    pub(super) unreadable: Vec<String>,
}

/// The server's version. `Err` where the server does not answer.
pub(super) async fn server_version(client: &Client) -> Result<Option<Version>, String> {
    let info = client.apiserver_version().await;
    let info = info.map_err(|error| format!("the API server does not answer: {}", describe_error(error)))?;
    Ok(Version::parse(&format!("{}.{}", info.major, info.minor)))
}

/// Reads what a check needs.
pub(super) async fn take(client: &Client, server: Option<Version>, scope: &Scope) -> Snapshot {
    let mut snapshot = take_without_pods(client, server).await;
    let namespace = scope.namespace.as_deref();
    let namespaces = match namespace {
        Some(name) => api::get(client, NAMESPACES, None, name).await.and_then(|found| {
            found.map(|namespace| vec![namespace]).ok_or_else(|| format!("there is no namespace {name}"))
        }),
        None => api::list_metadata(client, NAMESPACES, Selection::default()).await,
    };
    snapshot.namespaces = snapshot.note(namespaces).unwrap_or_default();
    let pods = read_pods(client, &snapshot, scope, &scope.settings).await;
    snapshot.pods = snapshot.note(pods).unwrap_or_default();
    if let (Some(name), [found]) = (namespace, snapshot.namespaces.as_slice())
        && tenant::is_tenant(found)
    {
        let (tenant, unreadable) = tenant::read(client, name).await;
        snapshot.tenant = Some(tenant);
        snapshot.unreadable.extend(unreadable);
    }
    if snapshot.namespaces.iter().any(|namespace| label(namespace, PROXY_LABEL) == Some(NODE)) {
        let class = api::get(client, RUNTIME_CLASSES, None, NODE_RUNTIME_CLASS).await;
        snapshot.has_node_runtime_class = snapshot.note(class).map(|found| found.is_some());
        let agents = api::list(client, DAEMON_SETS, Selection::default().labels(NODE_AGENT)).await;
        snapshot.node_agents = snapshot.note(agents);
    }
    snapshot
}

/// Reads all but namespaces and pods.
pub(super) async fn take_without_pods(client: &Client, server: Option<Version>) -> Snapshot {
    let mut snapshot = Snapshot { server, ..Snapshot::default() };
    let configurations = api::list(client, WEBHOOK_CONFIGURATIONS, Selection::default()).await;
    snapshot.configurations = snapshot.note(configurations);
    if let Some((namespace, name)) = snapshot.configurations.as_deref().and_then(service_of_ours) {
        let label = format!("kubernetes.io/service-name={name}");
        let slices = Selection::in_namespace(Some(&namespace)).labels(&label);
        let endpoints = api::list(client, ENDPOINT_SLICES, slices).await;
        snapshot.endpoints = snapshot.note(endpoints);
    }
    for kind in POLICIES {
        // A version that the server does not have is an error, and no policy.
        snapshot.has_policy |= matches!(api::get(client, kind, None, POLICY).await, Ok(Some(_)));
    }
    let nodes = api::list(client, NODES, Selection::default()).await;
    snapshot.nodes = snapshot.note(nodes).unwrap_or_default();
    let istiods = api::list(client, DEPLOYMENTS, Selection::default().labels("app=istiod")).await;
    snapshot.istiods = snapshot.note(istiods).unwrap_or_default();
    for istiod in &snapshot.istiods {
        let namespace = istiod["metadata"]["namespace"].as_str();
        let name = mesh_config_name(istiod);
        // The mesh configuration serves a hint only: no word where it cannot be read.
        if let Ok(Some(map)) = api::get(client, CONFIG_MAPS, namespace, &name).await {
            snapshot.mesh_configs.extend(map["data"]["mesh"].as_str().map(str::to_owned));
        }
    }
    snapshot
}

/// The `ConfigMap` of a control plane; that of a revision ends in the revision's name.
fn mesh_config_name(istiod: &Value) -> String {
    match istiod["metadata"]["labels"]["istio.io/rev"].as_str() {
        Some(revision) if revision != "default" => format!("istio-{revision}"),
        _ => "istio".to_owned(),
    }
}

async fn read_pods(
    client: &Client,
    snapshot: &Snapshot,
    scope: &Scope,
    settings: &Settings,
) -> Result<PodFacts, String> {
    let mut facts = PodFacts::default();
    // Each pod's decision is of interest in one namespace, and too much for a whole cluster.
    let namespace = scope.namespace.as_ref().and(snapshot.namespaces.first());
    let selection = Selection::in_namespace(scope.namespace.as_deref()).labels(&scope.selector).fields(UNFINISHED);
    api::for_each(client, PODS, selection, |pod| {
        facts.add(&pod, namespace.map(|namespace| (namespace, settings)));
    })
    .await?;
    Ok(facts)
}

impl Snapshot {
    /// What was read, or nothing and a note.
    fn note<T>(&mut self, read: Result<T, String>) -> Option<T> {
        read.map_err(|reason| self.unreadable.push(reason)).ok()
    }
}

/// Namespace and name of the Service that our configuration calls.
pub(crate) fn service_of_ours(configurations: &[Value]) -> Option<(String, String)> {
    let ours = configurations.iter().find(|configuration| configuration["metadata"]["name"] == OURS)?;
    let service = &ours["webhooks"][0]["clientConfig"]["service"];
    Some((service["namespace"].as_str()?.to_owned(), service["name"].as_str()?.to_owned()))
}
