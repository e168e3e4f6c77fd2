//! What a check reads, as it is, and what of it could not be read.

use kube::Client;
use serde_json::Value;

use crate::api::{self, Kind, PODS, in_words};
use crate::certificates::pair::{Validity, validity_of_first};
use crate::server_version::{self, Version};

const NODES: Kind = Kind("", "v1", "Node", "nodes");
const NAMESPACES: Kind = Kind("", "v1", "Namespace", "namespaces");
const DEPLOYMENTS: Kind = Kind("apps", "v1", "Deployment", "deployments");
const ENDPOINT_SLICES: Kind = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
const CONFIGURATIONS: Kind =
    Kind("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
/// The policy profile's, in the versions that servers may have.
const POLICIES: [Kind; 2] = [policies("v1"), policies("v1beta1")];

const fn policies(version: &'static str) -> Kind {
    Kind("admissionregistration.k8s.io", version, "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
}

/// The name of our configuration, and of our policy.
pub(super) const OURS: &str = "istio-aux";

/// A cluster, as its user may see it. What could not be read is `None`.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) server: Option<Version>,
    pub(super) nodes: Vec<Value>,
    pub(super) configurations: Option<Vec<Value>>,
    /// Whether the policy profile is installed.
    pub(super) has_policy: bool,
    /// The slices of the Service that our configuration names.
    pub(super) endpoints: Option<Vec<Value>>,
    pub(super) namespaces: Vec<Value>,
    pub(super) pods: Vec<Value>,
    /// Istio's control planes.
    pub(super) istiods: Vec<Value>,
    /// What could not be read, and why.
    pub(super) unread: Vec<String>,
}

/// Reads a cluster. `Err` where not even its version can be.
pub(super) async fn take(client: &Client, namespace: Option<&str>) -> Result<Snapshot, String> {
    let info = client.apiserver_version().await;
    let info = info.map_err(|error| format!("the API server cannot be asked: {}", in_words(error)))?;
    let mut unread = Vec::new();
    let mut noted = |read: Result<Vec<Value>, String>| read.map_err(|reason| unread.push(reason)).ok();
    let configurations = noted(api::list(client, CONFIGURATIONS, None, "").await);
    let service = configurations.as_deref().and_then(service_of_ours);
    let endpoints = match service {
        Some((namespace, name)) => {
            let label = format!("kubernetes.io/service-name={name}");
            noted(api::list(client, ENDPOINT_SLICES, Some(&namespace), &label).await)
        }
        None => None,
    };
    let namespaces = match namespace {
        Some(name) => noted(api::get(client, NAMESPACES, None, name).await.and_then(|found| {
            found.map(|namespace| vec![namespace]).ok_or_else(|| format!("there is no namespace {name}"))
        })),
        None => noted(api::list(client, NAMESPACES, None, "").await),
    };
    let mut has_policy = false;
    for kind in POLICIES {
        // A version that is not served is no trouble worth telling.
        has_policy |= matches!(api::get(client, kind, None, OURS).await, Ok(Some(_)));
    }
    Ok(Snapshot {
        has_policy,
        server: server_version::read(&info),
        nodes: noted(api::list(client, NODES, None, "").await).unwrap_or_default(),
        endpoints,
        namespaces: namespaces.unwrap_or_default(),
        pods: noted(api::list(client, PODS, namespace, "").await).unwrap_or_default(),
        istiods: noted(api::list(client, DEPLOYMENTS, None, "app=istiod").await).unwrap_or_default(),
        configurations,
        unread,
    })
}

/// Namespace and name of the Service that our configuration has called.
fn service_of_ours(configurations: &[Value]) -> Option<(String, String)> {
    let ours = configurations.iter().find(|configuration| configuration["metadata"]["name"] == OURS)?;
    let service = &ours["webhooks"][0]["clientConfig"]["service"];
    Some((service["namespace"].as_str()?.to_owned(), service["name"].as_str()?.to_owned()))
}

/// When the last of the authorities in a `caBundle` expires.
pub(super) fn trust_in(webhook: &Value) -> Option<Validity> {
    use base64::Engine;
    let bundle = webhook["clientConfig"]["caBundle"].as_str()?;
    let pem = base64::prelude::BASE64_STANDARD.decode(bundle).ok()?;
    let pem = String::from_utf8(pem).ok()?;
    let each = pem.split_inclusive("-----END CERTIFICATE-----").filter_map(validity_of_first);
    each.max_by_key(|validity| validity.ends)
}
