//! The removal of a container, after what its proxy has counted was read.

use std::collections::HashMap;

use cni::protocol::Sandbox;

use super::ids::revision_of;
use super::ports::Ports;
use super::{Node, ROOT_LABEL};
use crate::ended_counters::{Counts, Owner};
use crate::error::Result;
use crate::injector::Rendered;
use crate::pod::PodFacts;

/// The labels that say whose proxy a container is: the pod may not exist any more when it ends.
const NAMESPACE_LABEL: &str = "istio-aux.io/namespace";
const WORKLOAD_LABEL: &str = "istio-aux.io/workload";
const SERVICE_ACCOUNT_LABEL: &str = "istio-aux.io/service-account";

impl Node {
    /// Removes a container of a sandbox. What a proxy has counted is added to the agent's counters before.
    pub(super) async fn remove_container(
        &self,
        id: &str,
        labels: &HashMap<String, String>,
        sandbox: Option<&Sandbox>,
    ) -> Result<()> {
        if let (Some(filter), Some(sandbox), Some(owner)) = (&self.settings.ended_counters, sandbox, owner(labels))
            && let Err(error) = self.count(id, &owner, sandbox, filter).await
        {
            tracing::warn!(container = id, %error, "what a proxy had counted could not be read before its end");
        }
        Ok(self.containerd.remove(id).await?)
    }

    async fn count(&self, id: &str, owner: &Owner, sandbox: &Sandbox, filter: &str) -> Result<()> {
        // A proxy that has ended by itself took its counters along.
        let Some(network) = self.network(id, sandbox).await? else { return Ok(()) };
        let mut counts = Counts::default();
        let admin = Ports::of(revision_of(id).unwrap_or_default()).admin;
        network.raise_loopback().await?;
        network.counters(admin, filter, |line| counts.take(line)).await?;
        self.ended.add(id, owner, counts);
        Ok(())
    }
}

/// Returns a proxy's labels.
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

fn owner(labels: &HashMap<String, String>) -> Option<Owner> {
    let label = |name| labels.get(name).cloned();
    Some(Owner {
        namespace: label(NAMESPACE_LABEL)?,
        workload: label(WORKLOAD_LABEL)?,
        service_account: label(SERVICE_ACCOUNT_LABEL)?,
    })
}
