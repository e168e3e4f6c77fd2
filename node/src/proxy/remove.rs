//! The removal of a container, after what its proxy has counted was read.

use std::collections::HashMap;

use cni::protocol::Sandbox;

use super::Node;
use super::ids::revision_of;
use super::labels::owner_of;
use super::ports::Ports;
use crate::ended_counters::{Counts, Owner};
use crate::error::Result;

impl Node {
    /// Removes a container of a sandbox. What a proxy has counted is added to the agent's counters before.
    pub(super) async fn remove_container(
        &self,
        id: &str,
        labels: &HashMap<String, String>,
        sandbox: Option<&Sandbox>,
    ) -> Result<()> {
        if let (Some(filter), Some(sandbox), Some(owner)) = (&self.settings.ended_counters, sandbox, owner_of(labels))
            && let Err(error) = self.count(id, &owner, sandbox, filter).await
        {
            tracing::warn!(container = id, %error, "what a proxy had counted could not be read before its end");
        }
        self.containerd.remove(id).await?;
        self.ended.removed(id);
        Ok(())
    }

    async fn count(&self, id: &str, owner: &Owner, sandbox: &Sandbox, filter: &str) -> Result<()> {
        // A proxy that has ended by itself took its counters along.
        let Some(network) = self.network(id, sandbox).await? else { return Ok(()) };
        let mut counts = Counts::default();
        let admin = Ports::of(revision_of(id).unwrap_or_default()).admin;
        network.counters(admin, filter, |line| counts.take(line)).await?;
        self.ended.add(id, owner, counts);
        Ok(())
    }
}
