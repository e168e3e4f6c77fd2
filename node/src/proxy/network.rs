//! The rules of a pod's network, which programs in the container of its proxy read and change.

use cni::protocol::Sandbox;
use serde_json::Value;

use super::Node;
use super::ids::{proxy_id, user_of};
use super::rules::{SavedRules, too_large};
use super::spec;
use crate::error::{Context, Error, Result};
use crate::injector::Rendered;

/// The exit status of a program that `SIGXFSZ` has killed at the file's size limit.
const TOO_LARGE: u32 = 128 + 25;
/// Names the process beside a proxy's own.
const PROCESS: &str = "iptables";

impl Node {
    /// Redirects the pod's traffic to its proxy, whose container was created.
    pub(super) async fn redirect(&self, revision: u32, sandbox: &Sandbox, rendered: &Rendered) -> Result<()> {
        self.run_beside(revision, sandbox, &spec::redirect(sandbox, &rendered.redirection)).await
    }

    /// Redirects the standard ports, and captured DNS, to the proxy of the revision `serving`, by the pod's rules as they were read, in
    /// the container of the revision `container`.
    pub(super) async fn redirect_ports(
        &self,
        serving: u32,
        saved: &[SavedRules],
        container: u32,
        sandbox: &Sandbox,
    ) -> Result<()> {
        for saved in saved {
            let rules = saved.to_proxy(serving, user_of(&sandbox.id));
            self.run_with_rules(&rules, container, sandbox, &spec::apply_rules(&saved.program)).await?;
        }
        Ok(())
    }

    /// Returns the pod's rules for each family of its addresses, read in the container of a revision, which was created or runs.
    pub(super) async fn saved_rules(&self, revision: u32, sandbox: &Sandbox) -> Result<Vec<SavedRules>> {
        let read = |program: String| async move {
            self.run_with_rules("", revision, sandbox, &spec::save_rules(&program)).await
        };
        let mut saved = Vec::new();
        for is_ipv6 in families(sandbox) {
            saved.push(SavedRules::find(is_ipv6, read).await?);
        }
        Ok(saved)
    }

    /// Runs a process with a file of rules, and returns what it leaves in the file.
    async fn run_with_rules(&self, rules: &str, revision: u32, sandbox: &Sandbox, process: &Value) -> Result<String> {
        let files = self.files(&sandbox.id);
        files.write_rules(rules).context("the file of rules")?;
        let result = self.run_beside(revision, sandbox, process).await;
        let left = files.take_rules().context("the file of rules")?;
        result.map(|()| left)
    }

    /// Runs a process in the container of a proxy.
    async fn run_beside(&self, revision: u32, sandbox: &Sandbox, process: &Value) -> Result<()> {
        let (id, log) = (proxy_id(&sandbox.id, revision), self.log(&sandbox.id));
        let status = self.containerd.run(&id, PROCESS, process, &self.settings.logger, &log).await?;
        match status {
            0 => Ok(()),
            TOO_LARGE => Err(too_large()),
            status => Err(Error::new(format_args!("iptables ended with {status}"))),
        }
    }
}

/// Returns each family of the pod's addresses: true is IPv6.
fn families(sandbox: &Sandbox) -> impl Iterator<Item = bool> {
    let has = |is_ipv6: &bool| sandbox.addresses.iter().any(|address| address.is_ipv6() == *is_ipv6);
    [false, true].into_iter().filter(has)
}
