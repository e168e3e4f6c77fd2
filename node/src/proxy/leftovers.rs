//! What earlier agents have left on the node.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use cni::protocol::Sandbox;
use tokio::time::sleep;

use super::ids::sandbox_id;
use super::{Node, files, image_of};
use crate::containerd::CRI_NAMESPACE;
use crate::error::Result;

/// From the end of ADD to the start of the pause container, on a busy node.
const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(10);

/// What an earlier agent has left of a sandbox.
#[derive(Debug)]
pub enum Left {
    /// A proxy whose pod lives.
    Proxy {
        /// The pod's sandbox.
        sandbox: Sandbox,
        /// Whether the proxy was started from another image than new ones are.
        is_outdated: bool,
    },
    /// Something that is to be removed.
    Remains,
}

impl Node {
    /// What earlier agents have left, by the sandboxes' ids.
    pub async fn left(&self) -> Result<HashMap<String, Left>> {
        let containers = self.containerd.list().await?;
        let ids: BTreeSet<_> = containers.keys().map(|id| sandbox_id(id).to_owned()).chain(self.prepared()).collect();
        let (mut left, mut has_looked_again) = (HashMap::new(), false);
        for id in ids {
            let files = self.files(&id);
            let serving = containers.get(&self.serving(&id));
            let is_outdated = serving.is_some_and(|labels| image_of(labels) != self.image());
            // Where no proxy has served yet, the sandbox' plugin asks again.
            let sandbox = files.sandbox().filter(|_| files.generation().is_some());
            // A sandbox lives as long as its pause container, which is started after the proxy.
            let mut is_alive = self.containerd.pid(CRI_NAMESPACE, &id).await?.is_some();
            if sandbox.is_some() && !is_alive && !has_looked_again {
                sleep(SANDBOX_START_TIMEOUT).await;
                has_looked_again = true;
                is_alive = self.containerd.pid(CRI_NAMESPACE, &id).await?.is_some();
            }
            let sandbox = sandbox.filter(|_| is_alive);
            left.insert(id, sandbox.map_or(Left::Remains, |sandbox| Left::Proxy { sandbox, is_outdated }));
        }
        Ok(left)
    }

    /// The sandboxes for which something was written.
    fn prepared(&self) -> impl Iterator<Item = String> {
        let entries = std::fs::read_dir(files::all(&self.run_dir)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }
}
