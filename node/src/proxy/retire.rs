//! The end of proxies that served before an upgrade.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use cni::protocol::Sandbox;
use futures::future::join_all;
use tokio::time::sleep;

use super::Node;
use super::ids::revision_of;
use super::ports::Ports;
use crate::error::Result;

/// Envoy counts its connections every 5 s.
const COUNT_INTERVAL: Duration = Duration::from_secs(6);
/// Pause after earlier proxies could not be retired.
const RETIRE_RETRY_DELAY: Duration = Duration::from_secs(30);

impl Node {
    /// Ends each earlier proxy with its last connection, for as long as it is polled.
    pub(super) async fn retire_predecessors(&self, sandbox: &Sandbox) -> Infallible {
        while let Err(error) = self.try_retire(sandbox).await {
            tracing::warn!(sandbox = sandbox.id, %error, "could not retire earlier proxies");
            sleep(RETIRE_RETRY_DELAY).await;
        }
        std::future::pending().await
    }

    async fn try_retire(&self, sandbox: &Sandbox) -> Result<()> {
        let serving = self.serving(&sandbox.id);
        let mut others = self.containers(&sandbox.id).await?;
        others.remove(&serving);
        // An earlier proxy is there until the ports have been redirected.
        if others.keys().any(|id| self.earlier_revision(id, sandbox).is_some()) {
            self.redirect_ports(sandbox).await?;
        }
        // All at once: while the last connection of one is waited for, another is not to accept new ones.
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
        if let Some(revision) = self.earlier_revision(id, sandbox) {
            self.drain(id, revision, sandbox).await?;
        }
        self.remove_container(id, labels, Some(sandbox)).await
    }

    /// Returns the revision of a proxy that served before the present one. `None` for a later one, too: the agent ended while it
    /// started.
    fn earlier_revision(&self, id: &str, sandbox: &Sandbox) -> Option<u32> {
        revision_of(id).filter(|_| self.files(&sandbox.id).age(id) == Ordering::Less)
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
                tracing::warn!(container = id, connections = ?count, "a proxy before an upgrade is ended with its connections");
                break;
            }
        }
        Ok(())
    }
}
