//! The rules of a pod's network, which short-lived containers read and change.

use std::collections::HashMap;

use cni::protocol::Sandbox;
use serde_json::Value;

use super::Node;
use super::ids::{redirect_id, user_of};
use super::rules::SavedRules;
use super::spec::{self, Layout, RULES_LIMIT};
use crate::error::{Context, Error, Result};
use crate::injector::Rendered;
use crate::pod::PodFacts;

/// What follows `iptables` in the names of its kinds, each of which sees its own rules only. The last is one of the others.
const KINDS: [&str; 3] = ["-nft", "-legacy", ""];

impl Node {
    /// Redirects the pod's traffic to its proxy.
    pub(super) async fn redirect(&self, sandbox: &Sandbox, pod: &PodFacts, rendered: &Rendered) -> Result<()> {
        let spec = |layout: Layout| spec::redirect(sandbox, pod, &rendered.redirection, layout);
        succeeded(self.run_in_network(sandbox, pod, spec).await?)
    }

    /// Redirects the standard ports, and captured DNS, to the serving proxy.
    pub(super) async fn redirect_ports(&self, revision: u32, sandbox: &Sandbox, pod: &PodFacts) -> Result<()> {
        for is_ipv6 in [false, true] {
            if sandbox.addresses.iter().any(|address| address.is_ipv6() == is_ipv6) {
                let saved = self.saved_rules(is_ipv6, sandbox, pod).await?;
                let rules = saved.to_proxy(revision, user_of(&sandbox.id));
                let file = self.files(&sandbox.id).write_rules(&rules).context("the file of rules")?;
                let spec = |layout: Layout| spec::apply_rules(sandbox, pod, &file, &saved.program, layout);
                let applied = self.run_in_network(sandbox, pod, spec).await;
                self.files(&sandbox.id).take_rules().context("the file of rules")?;
                succeeded(applied?)?;
            }
        }
        Ok(())
    }

    /// Returns the pod's rules for IPv4 or IPv6 by the kind of `iptables` that has Istio's, which `istio-iptables` chose
    /// (`tools/istio-iptables/pkg/dependencies`); where none has, by the first that there is.
    async fn saved_rules(&self, is_ipv6: bool, sandbox: &Sandbox, pod: &PodFacts) -> Result<SavedRules> {
        let mut found = Err(Error::new("there is no iptables"));
        for kind in KINDS {
            let program = format!("{}tables{kind}", if is_ipv6 { "ip6" } else { "ip" });
            let file = self.files(&sandbox.id).write_rules("").context("the file of rules")?;
            let spec = |layout: Layout| spec::save_rules(sandbox, pod, &file, &program, layout);
            let status = self.run_in_network(sandbox, pod, spec).await;
            let text = self.files(&sandbox.id).take_rules().context("the file of rules")?;
            // `iptables-save` does not say that it could not write all.
            if text.len() >= RULES_LIMIT {
                return Err(Error::new(format_args!("the pod's firewall rules are cut at {} bytes", text.len())));
            }
            let saved = status.and_then(succeeded).map(|()| SavedRules { program, is_ipv6, text });
            if saved.as_ref().is_ok_and(SavedRules::have_istios) {
                return saved;
            }
            found = found.or(saved);
        }
        found
    }

    /// Runs a container that reads or changes the pod's network, and returns its exit status.
    async fn run_in_network(&self, sandbox: &Sandbox, pod: &PodFacts, spec: impl Fn(Layout) -> Value) -> Result<u32> {
        let id = redirect_id(&sandbox.id);
        self.containerd.remove(&id).await?;
        self.start_container(&id, HashMap::new(), sandbox, pod, spec).await?;
        let status = self.containerd.wait(&id).await?;
        self.containerd.remove(&id).await?;
        Ok(status)
    }
}

fn succeeded(status: u32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::new(format_args!("iptables ended with {status}"))) }
}
