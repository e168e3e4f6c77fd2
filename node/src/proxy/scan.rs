//! Scans the node: lists its sandboxes with their states by the runtime, the plugin and the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use cni::protocol::{Sandbox, tombstones};

use super::ids::sandbox_id;
use super::{Node, SandboxFiles, files, image_of};
use crate::containerd::{Containerd, Error, Listed};
use crate::error::Result;
use crate::install::HANDLER;
use crate::pod::is_pod_over;
use crate::sandbox::{NodeScan, SandboxStatus};

impl Node {
    /// Scans the node.
    pub async fn scan(&self) -> Result<NodeScan> {
        let run_dir = &self.settings.paths.run_dir;
        let containers = self.containerd.list(&[]).await?;
        let listed = self.containerd.sandboxes(HANDLER).await?;
        let deleted: BTreeSet<_> = names(&tombstones(run_dir)).collect();
        let with_containers = containers.keys().map(|id| sandbox_id(id).to_owned());
        let ids: BTreeSet<_> = with_containers.chain(names(&files::all(run_dir))).collect();
        for id in deleted.difference(&ids) {
            // A leftover tombstone is harmless, and the next scan retries.
            let _ = fs::remove_file(tombstones(run_dir).join(id));
        }
        let (mut scan, mut is_api_unavailable) = (NodeScan::default(), false);
        for id in ids {
            let serving = self.serving(&id).ok().and_then(|id| containers.get(&id));
            if serving.is_some_and(|labels| image_of(labels) != self.image()) {
                scan.outdated.insert(id.clone());
            }
            let status = match self.files(&id).sandbox() {
                Some(sandbox) => match SandboxStatus::of(&sandbox, deleted.contains(&id), &listed) {
                    Some(status) => status,
                    // Do not ask an unavailable API server again.
                    None if is_api_unavailable => SandboxStatus::Alive,
                    None => self.ask_api(&sandbox).await.unwrap_or_else(|error| {
                        tracing::warn!(sandbox = id, %error, "a sandbox does not run, and its pod is not known");
                        is_api_unavailable = true;
                        SandboxStatus::Alive
                    }),
                },
                // Without files, as after a reboot, its proxy cannot be adopted. A running sandbox is left alone.
                None if listed.iter().any(|one| one.is_ready && one.id == id) => SandboxStatus::Alive,
                None => SandboxStatus::Gone,
            };
            scan.statuses.insert(id, status);
        }
        Ok(scan)
    }

    async fn ask_api(&self, sandbox: &Sandbox) -> Result<SandboxStatus> {
        Ok(if is_pod_over(&self.client, sandbox).await? { SandboxStatus::Gone } else { SandboxStatus::Alive })
    }

    /// Returns the sandboxes that have files, with what is needed to adopt those whose proxy has served.
    pub(super) fn on_disk(&self) -> BTreeMap<String, Option<Sandbox>> {
        let ids = names(&files::all(&self.settings.paths.run_dir));
        let served = |id: &str| served_sandbox(&self.files(id));
        ids.map(|id| (id.clone(), served(&id))).collect()
    }
}

/// Returns the handler's pods that run without a proxy, as happens if the handler lacks `cni_conf_dir`. Pods with the node's network
/// do not count: they never have one.
pub(crate) async fn pods_without_proxy(containerd: &Containerd, run_dir: &Path) -> Result<Vec<Sandbox>, Error> {
    let listed = containerd.sandboxes(HANDLER).await?;
    let has_served = |one: &Listed| served_sandbox(&SandboxFiles::of(run_dir, &one.id)).is_some();
    let mut found = Vec::new();
    for one in listed.into_iter().filter(|one| one.is_ready && !has_served(one)) {
        if !containerd.has_network_of_node(&one.id).await? {
            let Listed { id, namespace, name, uid, .. } = one;
            found.push(Sandbox { id, namespace, name, uid, ..Sandbox::default() });
        }
    }
    Ok(found)
}

/// Returns the sandbox if a proxy has served it, or if the record of that cannot be read.
fn served_sandbox(files: &SandboxFiles) -> Option<Sandbox> {
    files.sandbox().filter(|_| !matches!(files.revision(), Ok(None)))
}

/// Returns the names of a directory's entries; none where it does not exist.
fn names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}
