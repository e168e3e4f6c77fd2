//! Reads the pod from the API. The identity is the service account, whatever annotations say.

use std::collections::BTreeMap;

use cni::protocol::Sandbox;
use contract::names::NODE_RUNTIME_CLASS;
use contract::quantity;
use k8s_openapi::api::core::v1::Pod;
use kube::api::GetParams;
use kube::{Client, Resource};
use serde::Deserialize;

use crate::error::{Context, Error, Result};

/// Limits a pod, in bytes of JSON. In memory it takes up to 50 times as much.
const POD_LIMIT: usize = 1 << 20;

/// Holds what a proxy needs of its pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodFacts {
    /// The pod's service account.
    pub service_account: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: String,
    /// The bytes of memory of the pod's overhead, which are the proxy's.
    pub memory: Option<u64>,
    /// The pod for istiod's injector: without commands, arguments and environment, of which its template says nothing.
    pub object: Box<Pod>,
}

/// Reads the facts of a sandbox' pod, and checks its UID and its runtime class.
pub async fn read_pod(client: &Client, sandbox: &Sandbox) -> Result<PodFacts> {
    let (_, text) = find_pod(client, sandbox).await?.context("the pod does not exist any more")?;
    if text.len() > POD_LIMIT {
        return Err(Error::new("the pod is larger than 1 MiB, in JSON"));
    }
    facts(serde_json::from_str(&text).context("the pod")?)
}

/// Returns true if the pod does not exist any more, or has ended: the kubelet has reported its phase as `Succeeded` or `Failed`.
pub async fn is_pod_over(client: &Client, sandbox: &Sandbox) -> Result<bool> {
    let phase = find_pod(client, sandbox).await?.map(|(pod, _)| pod.status.phase.unwrap_or_default());
    Ok(phase.is_none_or(|phase| ["Succeeded", "Failed"].contains(&phase.as_str())))
}

/// Is what identifies a pod, and its phase.
#[derive(Deserialize)]
struct Found {
    metadata: Identity,
    #[serde(default)]
    status: Phase,
}

#[derive(Deserialize)]
struct Identity {
    uid: Option<String>,
}

#[derive(Default, Deserialize)]
struct Phase {
    phase: Option<String>,
}

/// Reads the pod of a sandbox, and its text; `None` where it does not exist, or its name is another pod's.
async fn find_pod(client: &Client, sandbox: &Sandbox) -> Result<Option<(Found, String)>> {
    let pods = kube::core::Request::new(Pod::url_path(&(), Some(&sandbox.namespace)));
    let text = match client.request_text(pods.get(&sandbox.name, &GetParams::default())?).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        text => text.context("the pod cannot be read")?,
    };
    let found: Found = serde_json::from_str(&text).context("the pod")?;
    Ok((found.metadata.uid.as_deref() == Some(&sandbox.uid)).then_some((found, text)))
}

fn facts(mut pod: Pod) -> Result<PodFacts> {
    pod.metadata.managed_fields = None;
    let spec = pod.spec.as_mut().context("the pod has no spec")?;
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        (container.command, container.args, container.env, container.env_from) = (None, None, None, None);
    }
    if spec.runtime_class_name.as_deref() != Some(NODE_RUNTIME_CLASS) {
        return Err(Error::new(format_args!("the pod's runtime class is not {NODE_RUNTIME_CLASS}")));
    }
    let overhead = spec.overhead.as_ref().and_then(|overhead| overhead.get("memory"));
    Ok(PodFacts {
        service_account: spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned()),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        qos_class: pod.status.as_ref().and_then(|status| status.qos_class.clone()).unwrap_or_default(),
        memory: overhead.and_then(|memory| quantity::rounded_up(&memory.0)?.try_into().ok()),
        object: Box::new(pod),
    })
}
