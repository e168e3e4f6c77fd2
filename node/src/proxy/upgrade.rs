//! The upgrade of a proxy while its pod lives. Its successor has other ports of its own, and listens on the same ports for the
//! pod's traffic (`SO_REUSEPORT`). Once it serves, the earlier proxy accepts no connection, and ends with its last one.

use std::collections::HashMap;

use cni::protocol::Sandbox;
use tokio::time::Instant;

use super::Node;
use super::ids::{proxy_id, revision_of};
use super::ports::Ports;
use crate::error::{Context, Error, Result};
use crate::pod::read_pod;

impl Node {
    /// Starts the successor of a sandbox' proxy, and returns when it serves. What it leaves if it fails, `retire_predecessors` undoes.
    pub(super) async fn start_successor(&self, sandbox: &Sandbox) -> Result<()> {
        let (files, serving) = (self.files(&sandbox.id), self.serving(&sandbox.id));
        let start = async {
            let mut containers = self.containers(&sandbox.id).await?;
            let revision = self.undo_upgrade(&mut containers, sandbox).await?.wrapping_add(1);
            refuse_taken_ports(revision, containers.keys())?;
            let pod = read_pod(&self.client, sandbox).await?;
            let earlier = self.rendered(sandbox, &pod).await?;
            if earlier.is_redirected_by_nftables() {
                return Err(Error::new("upgrades need iptables' rules, and nativeNftables redirects this pod"));
            }
            let rendered = self.render(sandbox, &pod).await?.after(earlier);
            self.create_proxy(revision, sandbox, &pod, &rendered).await?;
            // Once it runs, the next proxy accepts connections, which would break if the rules could not be read then.
            let rules = self.saved_rules(revision, sandbox, &pod).await?;
            self.run_until_ready(revision, sandbox).await?;
            files.write_beginning(revision).context("the sandbox' files")?;
            self.redirect_ports(revision, &rules, sandbox, &pod).await?;
            files.write_rendered(&rendered).and_then(|()| files.write_revision(revision)).context("the sandbox' files")
        };
        tokio::select! {
            started = Self::in_time(Instant::now(), Box::pin(start)) => started,
            () = self.ended(&serving) => Err(Error::new("the proxy ended before the next one was ready")),
            never = self.keep_fresh(sandbox) => match never {},
        }
    }

    /// Redirects the ports to the serving proxy again, and removes the next one, also from `containers`, where an upgrade has failed or
    /// its agent has ended. Returns the revision that serves.
    pub(super) async fn undo_upgrade(
        &self,
        containers: &mut HashMap<String, HashMap<String, String>>,
        sandbox: &Sandbox,
    ) -> Result<u32> {
        let files = self.files(&sandbox.id);
        let serving = files.revision().context("the record of the serving proxy cannot be read")?;
        let next = serving.wrapping_add(1);
        if files.has_begun(next) {
            let pod = read_pod(&self.client, sandbox).await?;
            let rules = self.saved_rules(serving, sandbox, &pod).await?;
            self.redirect_ports(serving, &rules, sandbox, &pod).await?;
            files.remove_beginning(next).context("the sandbox' files")?;
        }
        let next = proxy_id(&sandbox.id, next);
        if let Some(labels) = containers.remove(&next) {
            self.remove_container(&next, &labels, Some(sandbox)).await?;
        }
        Ok(serving)
    }
}

/// Fails while a proxy of three upgrades ago still serves connections: it would receive its successor's probes.
fn refuse_taken_ports<'a>(revision: u32, mut containers: impl Iterator<Item = &'a String>) -> Result<()> {
    if containers.any(|id| revision_of(id).is_some_and(|other| Ports::of(other) == Ports::of(revision))) {
        return Err(Error::new("a proxy of three upgrades ago still serves connections, on the same ports"));
    }
    Ok(())
}
