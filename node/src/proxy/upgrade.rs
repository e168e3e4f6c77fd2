//! The upgrade of a proxy while its pod lives. The next one is started beside it, on other ports of its own, and listens on the
//! same ports for the pod's traffic (`SO_REUSEPORT`). Once it serves, the one before it accepts nothing any more, and ends
//! with its last connection.

use cni::protocol::Sandbox;

use super::Node;
use super::ids::{generation_of, proxy_id};
use super::ports::Ports;
use crate::error::{Error, Result};
use crate::pod::read_pod;

impl Node {
    /// Starts the next proxy of a sandbox, and returns when it serves. If that fails, the one that there is goes on alone.
    pub(super) async fn start_successor(&self, sandbox: &Sandbox) -> Result<()> {
        let serving = self.serving(&sandbox.id);
        let generation = self.files(&sandbox.id).generation().unwrap_or_default().wrapping_add(1);
        let next = proxy_id(&sandbox.id, generation);
        let start = async {
            self.containerd.remove(&next).await?;
            self.refuse_taken_ports(generation, sandbox).await?;
            let (pod, mesh) = (read_pod(&self.client, sandbox).await?, self.mesh().await?);
            let pid = self.start_proxy(generation, sandbox, &pod, &mesh).await?;
            self.until_ready(pid, generation, sandbox).await?;
            self.write_generation(generation, sandbox)
        };
        let in_turn = async {
            let _permit = self.upgrades.acquire().await?;
            self.in_time(sandbox, Box::pin(start)).await
        };
        let result = tokio::select! {
            started = in_turn => started,
            () = self.ended(&serving) => Err(Error::new("the proxy ended before the next one was ready")),
            never = self.keep_fresh(sandbox) => match never {},
        };
        if result.is_err()
            && let Err(error) = self.containerd.remove(&next).await
        {
            tracing::warn!(container = next, %error, "could not remove the proxy of an upgrade that failed");
        }
        result
    }

    /// A proxy of earlier upgrades may still serve connections, and would be asked in the next one's place.
    async fn refuse_taken_ports(&self, generation: u32, sandbox: &Sandbox) -> Result<()> {
        let containers = self.containers(&sandbox.id).await?;
        let mut others = containers.iter().filter_map(|id| generation_of(id));
        if others.any(|other| Ports::of(other) == Ports::of(generation)) {
            return Err(Error::new("a proxy of three upgrades ago still serves connections, on the same ports"));
        }
        Ok(())
    }
}
