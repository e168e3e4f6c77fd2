//! The containers of a sandbox, below the pod's cgroup and in its network.

use std::collections::HashMap;

use cni::protocol::Sandbox;
use serde_json::Value;

use super::ids::{cgroup_name, redirect_id, sandbox_id, user_of};
use super::ports::Ports;
use super::spec::{self, Layout};
use super::{Node, cgroup};
use crate::error::{Context, Error, Result};
use crate::injector::Rendered;
use crate::pod::PodFacts;

impl Node {
    /// Redirects the pod's traffic to its proxy.
    pub(super) async fn redirect(&self, sandbox: &Sandbox, pod: &PodFacts, rendered: &Rendered) -> Result<()> {
        self.run_in_network(sandbox, pod, |layout| spec::redirect(sandbox, pod, &rendered.redirection, layout)).await
    }

    /// Redirects the standard ports to the serving proxy.
    pub(super) async fn redirect_ports(&self, revision: u32, sandbox: &Sandbox, pod: &PodFacts) -> Result<()> {
        let files = self.files(&sandbox.id);
        let what = "the rules for the proxy's ports";
        let user = user_of(&sandbox.id);
        for is_ipv6 in [false, true] {
            if sandbox.addresses.iter().any(|address| address.is_ipv6() == is_ipv6) {
                let file = files.write_rules("").context(what)?;
                self.run_in_network(sandbox, pod, |layout| spec::save_rules(sandbox, pod, &file, is_ipv6, layout))
                    .await?;
                let saved = files.rules().context(what)?;
                let rules = files.write_rules(&Ports::rules(revision, user, is_ipv6, &saved)).context(what)?;
                self.run_in_network(sandbox, pod, |layout| spec::apply_rules(sandbox, pod, &rules, is_ipv6, layout))
                    .await?;
            }
        }
        Ok(())
    }

    /// Runs a container that changes the pod's network, and waits for its end.
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

    pub(super) async fn start_container(
        &self,
        id: &str,
        labels: HashMap<String, String>,
        sandbox: &Sandbox,
        pod: &PodFacts,
        spec: impl Fn(Layout) -> Value,
    ) -> Result<u32> {
        let of_pod = cgroup::of_pod(&self.settings.cgroups, sandbox, &pod.qos_class)?;
        let cgroup = format!("{of_pod}/{}", cgroup_name(id));
        let (files, log) = (self.files(&sandbox.id), self.log(&sandbox.id));
        let log_dir = &self.settings.paths.log_dir;
        std::fs::create_dir_all(log_dir).context(log_dir.display())?;
        let spec = spec(Layout { root: &self.settings.proxy_root, files: &files.directory, cgroup: &cgroup });
        Ok(self.containerd.start(id, labels, &spec, &self.settings.logger, &log).await?)
    }

    /// Returns the labels of a sandbox' containers, by their ids.
    pub(super) async fn containers(&self, sandbox: &str) -> Result<HashMap<String, HashMap<String, String>>> {
        let mut found = self.containerd.list(&[&format!("id~=^{sandbox}-")]).await?;
        found.retain(|id, _| sandbox_id(id) == sandbox);
        Ok(found)
    }
}
