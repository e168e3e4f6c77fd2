//! Reads the pod from the API. The identity is the service account, whatever annotations say.

use std::collections::BTreeMap;

use cni::protocol::Sandbox;
use contract::names::NODE_RUNTIME_CLASS;
use contract::quantity;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use crate::error::{Context, Error, Result};

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
    /// The whole pod, for istiod's injector.
    pub object: Box<Pod>,
}

/// Reads the facts of a sandbox' pod, and checks its UID and its runtime class.
pub async fn read_pod(client: &Client, sandbox: &Sandbox) -> Result<PodFacts> {
    facts(&find_pod(client, sandbox).await?.context("the pod does not exist any more")?)
}

/// Returns true if the pod does not exist any more, or has ended: the kubelet has reported its phase as `Succeeded` or `Failed`.
pub async fn is_pod_over(client: &Client, sandbox: &Sandbox) -> Result<bool> {
    let pod = find_pod(client, sandbox).await?;
    let phase = pod.as_ref().map(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()));
    Ok(matches!(phase, None | Some(Some("Succeeded" | "Failed"))))
}

/// Reads the pod of a sandbox; `None` where it does not exist, or its name is another pod's.
async fn find_pod(client: &Client, sandbox: &Sandbox) -> Result<Option<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &sandbox.namespace);
    let pod = pods.get_opt(&sandbox.name).await.context("the pod cannot be read")?;
    Ok(pod.filter(|pod| pod.metadata.uid.as_deref() == Some(&sandbox.uid)))
}

fn facts(pod: &Pod) -> Result<PodFacts> {
    let spec = pod.spec.as_ref().context("the pod has no spec")?;
    if spec.runtime_class_name.as_deref() != Some(NODE_RUNTIME_CLASS) {
        return Err(Error::new(format_args!("the pod's runtime class is not {NODE_RUNTIME_CLASS}")));
    }
    let overhead = spec.overhead.as_ref().and_then(|overhead| overhead.get("memory"));
    Ok(PodFacts {
        service_account: spec.service_account_name.clone().unwrap_or_else(|| "default".into()),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        qos_class: pod.status.as_ref().and_then(|status| status.qos_class.clone()).unwrap_or_default(),
        memory: overhead.and_then(|memory| quantity::rounded_up(&memory.0)?.try_into().ok()),
        object: Box::new(pod.clone()),
    })
}
