//! The proxy of a sandbox: its files, its containers, its certificate and its upgrades.

mod cgroup;
mod containers;
mod files;
mod ids;
mod istio;
mod leftovers;
mod ports;
mod retire;
mod serve;
mod spec;
mod start;
mod upgrade;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::protocol::Sandbox;
use kube::Client;
use tokio::sync::Semaphore;

use self::files::{SandboxFiles, Validity};
pub(crate) use self::ids::sandbox_of_proxy;
use self::ids::{proxy_id, revision_of, sandbox_id};
pub use self::leftovers::Leftover;
use crate::containerd::Containerd;
use crate::error::{Context, Result};
use crate::pod::{MeshFacts, read_mesh};
use crate::sandbox::Proxies;
use crate::settings::Settings;

/// The label that names the image a proxy was started from.
const ROOT_LABEL: &str = "istio-aux.io/proxy-root";
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Holds the connections and settings, and manages the proxies of its pods.
pub struct Node {
    /// The API server.
    pub client: Client,
    /// containerd.
    pub containerd: Containerd,
    /// The settings.
    pub settings: Settings,
    /// Limits the upgrades at a time.
    pub upgrades: Semaphore,
}

impl Node {
    /// Returns the container id of the proxy that serves.
    fn serving(&self, sandbox: &str) -> String {
        proxy_id(sandbox, self.files(sandbox).revision().unwrap_or_default())
    }

    /// Names the image of new proxies.
    #[must_use]
    pub fn image(&self) -> String {
        self.settings.proxy_root.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    async fn mesh(&self) -> Result<MeshFacts> {
        read_mesh(&self.client, &self.settings.mesh_namespace, &self.settings.mesh_config).await
    }

    fn files(&self, id: &str) -> SandboxFiles {
        SandboxFiles::of(&self.settings.paths.run_dir, id)
    }

    fn log(&self, id: &str) -> PathBuf {
        log_of(&self.settings.paths.log_dir, id)
    }
}

impl Proxies for Node {
    async fn start(&self, sandbox: &Sandbox) -> Result<()> {
        self.in_time(sandbox, self.start_until_ready(sandbox)).await
    }

    async fn maintain(&self, sandbox: &Sandbox) {
        let id = self.serving(&sandbox.id);
        tokio::select! {
            () = self.ended(&id) => {}
            never = self.keep_fresh(sandbox) => match never {},
            never = self.retire_predecessors(sandbox) => match never {},
        }
    }

    async fn upgrade(&self, sandbox: &Sandbox) -> Result<()> {
        self.start_successor(sandbox).await
    }

    async fn remove(&self, id: &str) -> Result<()> {
        self.remove_containers(id).await?;
        self.files(id).remove().context("the sandbox' files")?;
        remove_log(&self.settings.paths.log_dir, id).context("the proxy's log")
    }
}

/// Returns the sandbox of a proxy's container; `None` for another container.
pub(crate) fn sandbox_of(run_dir: &Path, id: &str) -> Option<Sandbox> {
    SandboxFiles::of(run_dir, sandbox_of_proxy(id)?).sandbox()
}

/// Names the image of the proxy whose container has these labels.
pub(crate) fn image_of(labels: &HashMap<String, String>) -> String {
    labels.get(ROOT_LABEL).cloned().unwrap_or_default()
}

/// Compares a proxy's container with the one that serves: less is earlier.
pub(crate) fn age(run_dir: &Path, id: &str) -> Ordering {
    revision_of(id).cmp(&SandboxFiles::of(run_dir, sandbox_id(id)).revision().or(Some(0)))
}

/// Returns true for the container of the proxy that serves.
pub(crate) fn is_serving(run_dir: &Path, id: &str) -> bool {
    age(run_dir, id) == Ordering::Equal
}

/// Returns the log file of a sandbox' proxy.
pub(crate) fn log_of(log_dir: &Path, id: &str) -> PathBuf {
    log_dir.join(format!("{id}.log"))
}

/// Removes that file if it exists.
pub(crate) fn remove_log(log_dir: &Path, id: &str) -> std::io::Result<()> {
    match std::fs::remove_file(log_of(log_dir, id)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the time for which the certificate of a sandbox' proxy is valid; `None` where it has expired.
pub(crate) fn certificate_expires_in(run_dir: &Path, id: &str) -> Option<Duration> {
    let left = SandboxFiles::of(run_dir, id).validity()?.not_after.checked_sub(files::now())?;
    Some(Duration::from_secs(left))
}

/// Returns the time at which the certificate's renewal is due, in seconds since 1970.
pub(crate) fn certificate_renewal_due(run_dir: &Path, id: &str) -> Option<u64> {
    SandboxFiles::of(run_dir, id).validity().map(Validity::renewal_due)
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().next_back().unwrap_or("none").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_proxy_serves_until_another_is_recorded() {
        let run_dir = tempfile::tempdir().unwrap();
        let files = SandboxFiles::of(run_dir.path(), "abc");
        std::fs::create_dir_all(&files.directory).unwrap();
        let ages = || [0, 1, 2].map(|revision| age(run_dir.path(), &proxy_id("abc", revision)));
        assert_eq!((files.revision(), ages()), (None, [Ordering::Equal, Ordering::Greater, Ordering::Greater]));
        files.write_revision(1).unwrap();
        assert_eq!((files.revision(), ages()), (Some(1), [Ordering::Less, Ordering::Equal, Ordering::Greater]));
    }
}
