//! The rules of a pod's network, which short-lived containers read and change.

use std::collections::HashMap;

use cni::protocol::Sandbox;
use serde_json::Value;

use super::Node;
use super::ids::{redirect_id, user_of};
use super::rules::SavedRules;
use super::spec::{self, Layout};
use crate::error::{Context, Error, Result};
use crate::injector::Rendered;
use crate::pod::PodFacts;

/// Each kind of `iptables` sees its own rules only. The last is one of the others.
const KINDS: [&str; 3] = ["tables-nft", "tables-legacy", "tables"];

impl Node {
    /// Redirects the pod's traffic to its proxy.
    pub(super) async fn redirect(&self, sandbox: &Sandbox, pod: &PodFacts, rendered: &Rendered) -> Result<()> {
        self.run_in_network(sandbox, pod, |layout| spec::redirect(sandbox, pod, &rendered.redirection, layout)).await
    }

    /// Redirects the standard ports, and captured DNS, to the serving proxy.
    pub(super) async fn redirect_ports(&self, revision: u32, sandbox: &Sandbox, pod: &PodFacts) -> Result<()> {
        for saved in self.saved_rules(sandbox, pod).await? {
            let rules = saved.redirected(revision, user_of(&sandbox.id));
            let file = self.files(&sandbox.id).write_rules(&rules).context("the rules for the proxy's ports")?;
            let spec = |layout: Layout| spec::apply_rules(sandbox, pod, &file, &saved.program, layout);
            self.run_in_network(sandbox, pod, spec).await?;
        }
        Ok(())
    }

    /// Returns true if the pod's rules redirect DNS to pilot-agent.
    pub(super) async fn redirects_dns(&self, sandbox: &Sandbox, pod: &PodFacts) -> Result<bool> {
        let saved = self.saved_rules(sandbox, pod).await?;
        if !saved.iter().any(SavedRules::have_istios) {
            return Err(Error::new(
                "no iptables has Istio's rules of the pod, so its DNS could not pass the next proxy",
            ));
        }
        Ok(saved.iter().any(SavedRules::redirect_dns))
    }

    /// Returns the pod's rules for IPv4, IPv6 or both, of the `iptables` that `istio-iptables` chose: by the node's kernel, and by
    /// the rules that there were (`tools/istio-iptables/pkg/dependencies`).
    async fn saved_rules(&self, sandbox: &Sandbox, pod: &PodFacts) -> Result<Vec<SavedRules>> {
        let mut all = Vec::new();
        for is_ipv6 in [false, true] {
            if sandbox.addresses.iter().any(|address| address.is_ipv6() == is_ipv6) {
                let mut found = self.saved_by(KINDS[0], is_ipv6, sandbox, pod).await;
                for kind in &KINDS[1..] {
                    if !found.as_ref().is_ok_and(SavedRules::have_istios) {
                        found = self.saved_by(kind, is_ipv6, sandbox, pod).await;
                    }
                }
                all.push(found?);
            }
        }
        Ok(all)
    }

    async fn saved_by(&self, kind: &str, is_ipv6: bool, sandbox: &Sandbox, pod: &PodFacts) -> Result<SavedRules> {
        let (files, what) = (self.files(&sandbox.id), "the rules of the pod's network");
        let program = format!("{}{kind}", if is_ipv6 { "ip6" } else { "ip" });
        let file = files.write_rules("").context(what)?;
        self.run_in_network(sandbox, pod, |layout| spec::save_rules(sandbox, pod, &file, &program, layout)).await?;
        Ok(SavedRules { program, is_ipv6, text: files.rules().context(what)? })
    }

    /// Runs a container that reads or changes the pod's network, and waits for its end.
    async fn run_in_network(&self, sandbox: &Sandbox, pod: &PodFacts, spec: impl Fn(Layout) -> Value) -> Result<()> {
        let id = redirect_id(&sandbox.id);
        self.containerd.remove(&id).await?;
        self.start_container(&id, HashMap::new(), sandbox, pod, spec).await?;
        let status = self.containerd.wait(&id).await?;
        self.containerd.remove(&id).await?;
        if status != 0 {
            return Err(Error::new(format_args!("iptables ended with {status}")));
        }
        Ok(())
    }
}
