//! The containers of a sandbox' proxies, below the pod's cgroup and in its network.

use std::collections::HashMap;

use cni::protocol::Sandbox;

use super::ids::{cgroup_name, proxy_id, sandbox_id};
use super::labels::labels;
use super::ports::Ports;
use super::spec::{self, Layout};
use super::{Node, cgroup};
use crate::error::{Context, Result};
use crate::injector::Rendered;
use crate::pod::PodFacts;

impl Node {
    /// Creates the container of a proxy, which runs nothing yet.
    pub(super) async fn create_proxy(
        &self,
        revision: u32,
        sandbox: &Sandbox,
        pod: &PodFacts,
        rendered: &Rendered,
    ) -> Result<()> {
        let of_pod = cgroup::of_pod(&self.settings.cgroups, sandbox, &pod.qos_class)?;
        let cgroup = format!("{of_pod}/{}", cgroup_name(&sandbox.id, revision));
        let (files, log) = (self.files(&sandbox.id), self.log(&sandbox.id));
        let log_dir = &self.settings.paths.log_dir;
        std::fs::create_dir_all(log_dir).context(log_dir.display())?;
        files.create_mounts().context("the sandbox' files")?;
        let layout = Layout {
            root: &self.settings.proxy_root,
            files: &files.directory,
            cgroup: &cgroup,
            is_unified: cgroup::are_unified(&self.settings.cgroups),
        };
        let spec = spec::proxy(sandbox, pod, &rendered.proxy, Ports::of(revision), layout);
        let labels = labels(self.image(), sandbox, pod, rendered);
        let id = proxy_id(&sandbox.id, revision);
        Ok(self.containerd.create(&id, labels, &spec, &self.settings.logger, &log).await?)
    }

    /// Returns the labels of a sandbox' containers, by their ids.
    pub(super) async fn containers(&self, sandbox: &str) -> Result<HashMap<String, HashMap<String, String>>> {
        let mut found = self.containerd.list(&[&format!("id~=^{sandbox}-")]).await?;
        found.retain(|id, _| sandbox_id(id) == sandbox);
        Ok(found)
    }
}
