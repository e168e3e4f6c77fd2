//! The end of proxies that served before an upgrade, and of what an upgrade that failed has left.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use cni::protocol::Sandbox;
use futures::future::join_all;
use tokio::time::sleep;

use super::Node;
use super::ids::{proxy_id, revision_of};
use super::ports::Ports;
use crate::error::Result;

/// Envoy counts its connections every 5 s.
const COUNT_INTERVAL: Duration = Duration::from_secs(6);
/// Pause after earlier proxies could not be retired.
const RETIRE_RETRY_DELAY: Duration = Duration::from_secs(30);

impl Node {
    /// Undoes an upgrade that failed, and ends each earlier proxy with its last connection, for as long as it is polled.
    pub(super) async fn retire_predecessors(&self, sandbox: &Sandbox) -> Infallible {
        while let Err(error) = self.try_retire(sandbox).await {
            tracing::warn!(sandbox = sandbox.id, %error, "could not retire earlier proxies");
            sleep(RETIRE_RETRY_DELAY).await;
        }
        std::future::pending().await
    }

    async fn try_retire(&self, sandbox: &Sandbox) -> Result<()> {
        let mut others = self.containers(&sandbox.id).await?;
        let serving = self.undo_upgrade(&mut others, sandbox).await?;
        others.remove(&proxy_id(&sandbox.id, serving));
        // All at once, so that none accepts new connections while another one drains.
        join_all(others.iter().map(async |(id, labels)| {
            while let Err(error) = self.retire(id, labels, sandbox).await {
                tracing::warn!(container = id, %error, "could not retire an earlier proxy");
                sleep(RETIRE_RETRY_DELAY).await;
            }
        }))
        .await;
        Ok(())
    }

    async fn retire(&self, id: &str, labels: &HashMap<String, String>, sandbox: &Sandbox) -> Result<()> {
        if let Some(revision) = revision_of(id) {
            self.drain(id, revision, sandbox).await?;
        }
        self.remove_container(id, labels, Some(sandbox)).await
    }

    /// Returns when a proxy has no connections, or the drain timeout is over.
    async fn drain(&self, id: &str, revision: u32, sandbox: &Sandbox) -> Result<()> {
        let admin = Ports::of(revision).admin;
        let mut is_draining = false;
        while let Some(network) = self.network(id, sandbox).await? {
            let drained = if is_draining { Ok(()) } else { network.drain(admin).await };
            is_draining = drained.is_ok();
            sleep(COUNT_INTERVAL).await;
            let count = match drained {
                Ok(()) => network.connections(admin).await,
                Err(error) => Err(error),
            };
            if count == Ok(0) {
                break;
            }
            if self.files(&sandbox.id).replaced_for(revision) >= Duration::from_secs(self.settings.drain_timeout) {
                tracing::warn!(container = id, connections = ?count, "drain timeout: ending an earlier proxy with its connections");
                break;
            }
        }
        Ok(())
    }
}
