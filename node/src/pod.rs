//! Reads the pod and the mesh's configuration from the API. The identity is the service account, whatever annotations say.

use std::collections::BTreeMap;

use cni::protocol::Sandbox;
use contract::names::NODE_RUNTIME_CLASS;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::error::{Context, Error, Result};
use crate::settings::Settings;

/// Holds what a proxy needs of its pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodFacts {
    /// The pod's service account.
    pub service_account: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// The node's name.
    pub node: String,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: String,
    /// The containers' names, with commas.
    pub containers: String,
    /// The containers' ports, as a JSON array.
    pub ports: Value,
    /// The object that controls the pod, such as its Job.
    pub owner: Option<OwnerReference>,
}

/// Holds what a proxy needs of its mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshFacts {
    /// `defaultConfig`, which pilot-agent calls `PROXY_CONFIG`.
    pub proxy_config: Value,
    /// Such as `cluster.local`.
    pub trust_domain: String,
    /// The cluster's name in the mesh.
    pub cluster: String,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
}

/// Reads the pod of a sandbox, and checks its UID and its runtime class.
pub async fn read_pod(client: &Client, sandbox: &Sandbox) -> Result<PodFacts> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &sandbox.namespace);
    let pod = pods.get_opt(&sandbox.name).await.context("the pod cannot be read")?;
    let pod = pod.ok_or_else(|| Error::pod_is_gone("the pod does not exist any more"))?;
    facts(&pod, &sandbox.uid)
}

/// Reads the mesh's configuration.
pub async fn read_mesh(client: &Client, settings: &Settings) -> Result<MeshFacts> {
    let name = &settings.mesh_config;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &settings.mesh_namespace);
    let map = maps.get(name).await.context(format_args!("ConfigMap {name} cannot be read"))?;
    let text = map.data.and_then(|mut data| data.remove("mesh")).unwrap_or_default();
    let mesh: Value = serde_saphyr::from_str(&text).context(format_args!("ConfigMap {name}"))?;
    Ok(MeshFacts {
        proxy_config: mesh.get("defaultConfig").cloned().unwrap_or_else(|| json!({})),
        trust_domain: mesh["trustDomain"].as_str().unwrap_or("cluster.local").to_owned(),
        cluster: settings.ca.cluster.clone(),
        cluster_domain: settings.cluster_domain.clone(),
    })
}

fn facts(pod: &Pod, uid: &str) -> Result<PodFacts> {
    let spec = pod.spec.as_ref().context("the pod has no spec")?;
    if pod.metadata.uid.as_deref() != Some(uid) {
        return Err(Error::pod_is_gone("the pod of that name is another one"));
    }
    if spec.runtime_class_name.as_deref() != Some(NODE_RUNTIME_CLASS) {
        return Err(Error::new(format_args!("the pod's runtime class is not {NODE_RUNTIME_CLASS}")));
    }
    let names: Vec<_> = spec.containers.iter().map(|container| container.name.as_str()).collect();
    let ports: Vec<_> = spec.containers.iter().flat_map(|container| container.ports.iter().flatten()).collect();
    let mut owners = pod.metadata.owner_references.iter().flatten();
    Ok(PodFacts {
        service_account: spec.service_account_name.clone().unwrap_or_else(|| "default".into()),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        node: spec.node_name.clone().unwrap_or_default(),
        qos_class: pod.status.as_ref().and_then(|status| status.qos_class.clone()).unwrap_or_default(),
        containers: names.join(","),
        ports: json!(ports),
        owner: owners.rfind(|owner| owner.controller == Some(true)).cloned(),
    })
}
