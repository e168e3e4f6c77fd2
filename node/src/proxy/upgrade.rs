//! The upgrade of a proxy while its pod lives. Its successor has other ports of its own, and listens on the same ports for the
//! pod's traffic (`SO_REUSEPORT`). Once it serves, the earlier proxy accepts no connection, and ends with its last one.

use std::collections::HashMap;

use cni::protocol::Sandbox;
use tokio::time::Instant;

use super::files::record_of;
use super::ids::{proxy_id, revision_of};
use super::ports::Ports;
use super::rules::check_dns;
use super::{Node, RECORD};
use crate::error::{Context, Error, Result};
use crate::pod::read_pod;

impl Node {
    /// Starts the successor of a sandbox' proxy, and returns when it serves. What it leaves if it fails, `retire_predecessors` undoes.
    pub(super) async fn start_successor(&self, sandbox: &Sandbox) -> Result<()> {
        let (files, serving) = (self.files(&sandbox.id), self.serving(&sandbox.id)?);
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
            // The next proxy accepts connections as soon as it runs, and they break if the upgrade fails: what can fail is tried before.
            let record = record_of(&rendered).context("the sandbox' files")?;
            self.create_proxy(revision, sandbox, &pod, &rendered).await?;
            let rules = self.saved_rules(revision, sandbox).await?;
            check_dns(&rules, rendered.redirects_dns())?;
            self.run_until_ready(revision, sandbox).await?;
            files.write_beginning(revision).context("the sandbox' files")?;
            self.redirect_ports(revision, &rules, revision, sandbox).await?;
            files.write_rendered(&record).and_then(|()| files.write_revision(revision)).context("the sandbox' files")
        };
        tokio::select! {
            started = Self::in_time(Instant::now(), Box::pin(start)) => started,
            () = self.ended(&serving) => Err(Error::new("the proxy ended before the next one was ready")),
            never = self.keep_fresh(sandbox) => match never {},
        }
    }

    /// After a failed or interrupted upgrade, redirects the ports to the serving proxy again, and removes the next one, also from
    /// `containers`. Returns the revision that serves.
    pub(super) async fn undo_upgrade(
        &self,
        containers: &mut HashMap<String, HashMap<String, String>>,
        sandbox: &Sandbox,
    ) -> Result<u32> {
        let files = self.files(&sandbox.id);
        let serving = files.revision().context(RECORD)?.context("no proxy has served")?;
        let next = serving.wrapping_add(1);
        let next_id = proxy_id(&sandbox.id, next);
        if files.has_begun(next).context(RECORD)? {
            // Prefer the next proxy's container, if it runs: a program left there by the upgrade is killed first, its iptables may be
            // newer, and the serving proxy's memory stays free.
            let next_runs = matches!(self.containerd.pid(&next_id).await, Ok(Some(_)));
            let container = if next_runs { next } else { serving };
            let rules = self.saved_rules(container, sandbox).await?;
            self.redirect_ports(serving, &rules, container, sandbox).await?;
            files.remove_beginning(next).context("the sandbox' files")?;
            // On failure DNS stays with the next proxy, until an upgrade whose image reads the rules.
            let rendered = files.rendered().context(RECORD)?.unwrap_or_default();
            check_dns(&rules, rendered.redirects_dns())?;
        }
        if let Some(labels) = containers.remove(&next_id) {
            self.remove_container(&next_id, &labels, Some(sandbox)).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_waits_for_the_proxy_whose_ports_it_takes() {
        let running = |revisions: &[u32]| revisions.iter().map(|revision| proxy_id("a", *revision)).collect::<Vec<_>>();
        assert!(refuse_taken_ports(3, running(&[1, 2]).iter()).is_ok());
        let error = refuse_taken_ports(3, running(&[0, 1, 2]).iter()).unwrap_err();
        assert_eq!(error.to_string(), "a proxy of three upgrades ago still serves connections, on the same ports");
    }
}
