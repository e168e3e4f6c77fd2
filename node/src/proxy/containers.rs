//! The containers of a sandbox, below the pod's cgroup and in its network.

use std::collections::HashMap;

use cni::protocol::Sandbox;
use serde_json::Value;

use super::ids::{cgroup_name, sandbox_id};
use super::spec::Layout;
use super::{Node, cgroup};
use crate::error::{Context, Result};
use crate::pod::PodFacts;

impl Node {
    pub(super) async fn create_container(
        &self,
        id: &str,
        labels: HashMap<String, String>,
        sandbox: &Sandbox,
        pod: &PodFacts,
        spec: impl Fn(Layout) -> Value,
    ) -> Result<()> {
        let of_pod = cgroup::of_pod(&self.settings.cgroups, sandbox, &pod.qos_class)?;
        let cgroup = format!("{of_pod}/{}", cgroup_name(id));
        let (files, log) = (self.files(&sandbox.id), self.log(&sandbox.id));
        let log_dir = &self.settings.paths.log_dir;
        std::fs::create_dir_all(log_dir).context(log_dir.display())?;
        let spec = spec(Layout { root: &self.settings.proxy_root, files: &files.directory, cgroup: &cgroup });
        Ok(self.containerd.create(id, labels, &spec, &self.settings.logger, &log).await?)
    }

    /// Returns the labels of a sandbox' containers, by their ids.
    pub(super) async fn containers(&self, sandbox: &str) -> Result<HashMap<String, HashMap<String, String>>> {
        let mut found = self.containerd.list(&[&format!("id~=^{sandbox}-")]).await?;
        found.retain(|id, _| sandbox_id(id) == sandbox);
        Ok(found)
    }
}
