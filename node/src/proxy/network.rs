//! The rules of a pod's network, which short-lived containers read and change.

use std::collections::HashMap;
use std::path::Path;

use cni::protocol::Sandbox;
use serde_json::Value;

use super::Node;
use super::ids::{redirect_id, user_of};
use super::rules::SavedRules;
use super::spec::{self, Layout};
use crate::error::{Context, Error, Result};
use crate::injector::Rendered;
use crate::pod::PodFacts;

impl Node {
    /// Redirects the pod's traffic to its proxy.
    pub(super) async fn redirect(&self, sandbox: &Sandbox, pod: &PodFacts, rendered: &Rendered) -> Result<()> {
        let spec = |layout: Layout| spec::redirect(sandbox, pod, &rendered.redirection, layout);
        self.run_in_network(sandbox, pod, spec).await
    }

    /// Redirects the standard ports, and captured DNS, to the proxy of a revision, by the pod's rules as they were read.
    pub(super) async fn redirect_ports(
        &self,
        revision: u32,
        saved: &[SavedRules],
        sandbox: &Sandbox,
        pod: &PodFacts,
    ) -> Result<()> {
        for saved in saved {
            let rules = saved.to_proxy(revision, user_of(&sandbox.id));
            let spec = |file: &Path, layout: Layout| spec::apply_rules(sandbox, pod, file, &saved.program, layout);
            self.run_with_rules(&rules, sandbox, pod, spec).await?;
        }
        Ok(())
    }

    /// Returns the pod's rules for each family of its addresses.
    pub(super) async fn saved_rules(&self, sandbox: &Sandbox, pod: &PodFacts) -> Result<Vec<SavedRules>> {
        let read = |program: String| async move {
            let spec = |file: &Path, layout: Layout| spec::save_rules(sandbox, pod, file, &program, layout);
            self.run_with_rules("", sandbox, pod, spec).await
        };
        let mut saved = Vec::new();
        for is_ipv6 in families(sandbox) {
            saved.push(SavedRules::find(is_ipv6, read).await?);
        }
        Ok(saved)
    }

    /// Runs a container with a file of rules, and returns what it leaves in the file.
    async fn run_with_rules(
        &self,
        rules: &str,
        sandbox: &Sandbox,
        pod: &PodFacts,
        spec: impl Fn(&Path, Layout) -> Value,
    ) -> Result<String> {
        let files = self.files(&sandbox.id);
        let file = files.write_rules(rules).context("the file of rules")?;
        let result = self.run_in_network(sandbox, pod, |layout| spec(&file, layout)).await;
        let left = files.take_rules().context("the file of rules")?;
        result.map(|()| left)
    }

    /// Runs a container that reads or changes the pod's network.
    async fn run_in_network(&self, sandbox: &Sandbox, pod: &PodFacts, spec: impl Fn(Layout) -> Value) -> Result<()> {
        let id = redirect_id(&sandbox.id);
        self.containerd.remove(&id).await?;
        self.create_container(&id, HashMap::new(), sandbox, pod, spec).await?;
        self.containerd.start(&id).await?;
        let status = self.containerd.wait(&id).await?;
        self.containerd.remove(&id).await?;
        if status == 0 { Ok(()) } else { Err(Error::new(format_args!("iptables ended with {status}"))) }
    }
}

/// Returns each family of the pod's addresses: true is IPv6.
fn families(sandbox: &Sandbox) -> impl Iterator<Item = bool> {
    let has = |is_ipv6: &bool| sandbox.addresses.iter().any(|address| address.is_ipv6() == *is_ipv6);
    [false, true].into_iter().filter(has)
}
