//! The proxies and files that earlier agents have left on the node.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use cni::protocol::Sandbox;
use tokio::time::sleep;

use super::ids::sandbox_id;
use super::{Node, files, image_of};
use crate::containerd::CRI_NAMESPACE;
use crate::error::Result;

/// Limits the time from the end of ADD to the start of the pause container, on a busy node.
const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(10);

/// Describes what an earlier agent has left of a sandbox.
#[derive(Debug)]
pub enum Leftover {
    /// A proxy whose pod lives.
    Live {
        /// The pod's sandbox.
        sandbox: Sandbox,
        /// True if the proxy was started from another image than new ones are.
        is_outdated: bool,
    },
    /// Containers or files to be removed.
    Stale,
}

impl Node {
    /// Returns what earlier agents have left, by the sandboxes' ids.
    pub async fn leftovers(&self) -> Result<HashMap<String, Leftover>> {
        let containers = self.containerd.list().await?;
        let ids: BTreeSet<_> = containers.keys().map(|id| sandbox_id(id).to_owned()).chain(self.prepared()).collect();
        let (mut leftovers, mut has_waited) = (HashMap::new(), false);
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
            let sandbox = sandbox.filter(|_| is_alive);
            leftovers.insert(id, sandbox.map_or(Leftover::Stale, |sandbox| Leftover::Live { sandbox, is_outdated }));
        }
        Ok(leftovers)
    }

    /// Returns the ids of the sandboxes that have a directory.
    fn prepared(&self) -> impl Iterator<Item = String> {
        let entries = std::fs::read_dir(files::all(&self.settings.paths.run_dir)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }
}
