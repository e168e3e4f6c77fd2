//! The labels of a proxy's container in containerd.

use std::collections::HashMap;

use cni::protocol::Sandbox;

use crate::ended_counters::Owner;
use crate::injector::Rendered;
use crate::pod::PodFacts;

/// The label that names the image a proxy was started from.
const ROOT_LABEL: &str = "istio-aux.io/proxy-root";
/// The labels that say whose proxy a container is: the pod may not exist any more when it ends.
const NAMESPACE_LABEL: &str = "istio-aux.io/namespace";
const WORKLOAD_LABEL: &str = "istio-aux.io/workload";
const SERVICE_ACCOUNT_LABEL: &str = "istio-aux.io/service-account";

/// Names the image of the proxy whose container has these labels.
pub(crate) fn image_of(labels: &HashMap<String, String>) -> String {
    labels.get(ROOT_LABEL).cloned().unwrap_or_default()
}

/// Returns the labels of a new proxy's container.
pub(super) fn labels(image: String, sandbox: &Sandbox, pod: &PodFacts, rendered: &Rendered) -> HashMap<String, String> {
    let workload = rendered.proxy.environment.get("ISTIO_META_WORKLOAD_NAME");
    let labels = [
        (ROOT_LABEL, image),
        (NAMESPACE_LABEL, sandbox.namespace.clone()),
        (WORKLOAD_LABEL, workload.cloned().unwrap_or_default()),
        (SERVICE_ACCOUNT_LABEL, pod.service_account.clone()),
    ];
    labels.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Returns whose proxy it is; `None` for another container, and for a proxy that an earlier agent started.
pub(super) fn owner_of(labels: &HashMap<String, String>) -> Option<Owner> {
    let label = |name| labels.get(name).cloned();
    Some(Owner {
        namespace: label(NAMESPACE_LABEL)?,
        workload: label(WORKLOAD_LABEL)?,
        service_account: label(SERVICE_ACCOUNT_LABEL)?,
    })
}
