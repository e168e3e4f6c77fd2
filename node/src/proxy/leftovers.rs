//! The proxies and files that earlier agents have left on the node.

use std::collections::BTreeSet;
use std::time::Duration;

use cni::protocol::Sandbox;
use tokio::time::sleep;

use super::ids::sandbox_id;
use super::{Node, files, image_of};
use crate::containerd::CRI_NAMESPACE;
use crate::error::Result;

/// Limits the time from the end of ADD to the start of the pause container, on a busy node.
const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(10);

/// Holds what earlier agents have left.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Sandboxes whose pods live; true where the proxy was started from another image than new ones are.
    pub live: Vec<(Sandbox, bool)>,
    /// The ids of sandboxes whose containers and files are to be removed.
    pub stale: Vec<String>,
}

impl Node {
    /// Returns what earlier agents have left.
    pub async fn leftovers(&self) -> Result<Leftovers> {
        let containers = self.containerd.list(&[]).await?;
        let ids: BTreeSet<_> = containers.keys().map(|id| sandbox_id(id).to_owned()).chain(self.prepared()).collect();
        let (mut leftovers, mut has_waited) = (Leftovers::default(), false);
        for id in ids {
            let files = self.files(&id);
            let serving = containers.get(&self.serving(&id));
            let is_outdated = serving.is_some_and(|labels| image_of(labels) != self.image());
            // Where no proxy has served yet, the plugin repeats its request.
            let sandbox = files.sandbox().filter(|_| files.revision().is_some());
            // A sandbox lives as long as its pause container, which is started after the proxy.
            let mut is_alive = self.containerd.pid(CRI_NAMESPACE, &id).await?.is_some();
            if sandbox.is_some() && !is_alive && !has_waited {
                sleep(SANDBOX_START_TIMEOUT).await;
                has_waited = true;
                is_alive = self.containerd.pid(CRI_NAMESPACE, &id).await?.is_some();
            }
            match sandbox.filter(|_| is_alive) {
                Some(sandbox) => leftovers.live.push((sandbox, is_outdated)),
                None => leftovers.stale.push(id),
            }
        }
        Ok(leftovers)
    }

    /// Returns the ids of the sandboxes that have a directory.
    fn prepared(&self) -> impl Iterator<Item = String> {
        let entries = std::fs::read_dir(files::all(&self.settings.paths.run_dir)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }
}
