//! The upgrade of a proxy while its pod lives. Its successor has other ports of its own, and listens on the same ports for the
//! pod's traffic (`SO_REUSEPORT`). Once it serves, the earlier proxy accepts no connection, and ends with its last one.

use cni::protocol::Sandbox;
use tokio::time::Instant;

use super::Node;
use super::ids::{proxy_id, revision_of};
use super::ports::Ports;
use crate::error::{Context, Error, Result};
use crate::pod::read_pod;

impl Node {
    /// Starts the successor of a sandbox' proxy, and returns when it serves. If that fails, the present proxy goes on alone.
    pub(super) async fn start_successor(&self, sandbox: &Sandbox) -> Result<()> {
        let serving = self.serving(&sandbox.id);
        let revision = self.files(&sandbox.id).revision().unwrap_or_default().wrapping_add(1);
        let next = proxy_id(&sandbox.id, revision);
        let start = async {
            self.containerd.remove(&next).await?;
            self.refuse_taken_ports(revision, sandbox).await?;
            let pod = read_pod(&self.client, sandbox).await?;
            let earlier = self.rendered(sandbox, &pod).await?;
            if earlier.is_redirected_by_nftables() {
                return Err(Error::new("upgrades need iptables' rules, and nativeNftables redirects this pod"));
            }
            self.refuse_unreadable_rules(sandbox, &pod).await?;
            let rendered = self.render(sandbox, &pod).await?.after(earlier);
            self.start_proxy(revision, sandbox, &pod, &rendered).await?;
            self.until_ready(revision, sandbox).await?;
            let files = self.files(&sandbox.id);
            files.write_rendered(&rendered).and_then(|()| files.write_revision(revision)).context("the sandbox' files")
        };
        let result = tokio::select! {
            started = Self::in_time(Instant::now(), Box::pin(start)) => started,
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

    /// Fails while a proxy of three upgrades ago still serves connections: it would receive its successor's probes.
    async fn refuse_taken_ports(&self, revision: u32, sandbox: &Sandbox) -> Result<()> {
        let containers = self.containers(&sandbox.id).await?;
        let mut others = containers.keys().filter_map(|id| revision_of(id));
        if others.any(|other| Ports::of(other) == Ports::of(revision)) {
            return Err(Error::new("a proxy of three upgrades ago still serves connections, on the same ports"));
        }
        Ok(())
    }
}
