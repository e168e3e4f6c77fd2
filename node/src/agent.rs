//! Runs the agent: adopts the proxies of an earlier agent, removes stale ones, and serves the plugin.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::protocol::{self, Request};
use tokio::time::sleep;

use crate::containerd::Containerd;
use crate::error::{Context, Result};
use crate::install;
use crate::metrics::{EventCounts, Exporter};
use crate::proxy::{self, Node};
use crate::rootfs;
use crate::sandbox::{Event, Supervisor};
use crate::server;
use crate::settings::CniPaths;

const INSTALL_INTERVAL: Duration = Duration::from_secs(10);
const ROOTS_INTERVAL: Duration = Duration::from_hours(1);

/// Runs until a part fails; metrics are served where a port is given.
pub async fn run(node: Node, cni: CniPaths, metrics_port: Option<u16>) -> Result<Infallible> {
    let run_dir = node.settings.paths.run_dir.clone();
    let events = EventCounts::new(&Event::LABELS);
    let exporter = Exporter {
        events: events.clone(),
        containerd: node.containerd.clone(),
        run_dir: run_dir.clone(),
        image: node.image(),
    };
    let (containerd, root) = (node.containerd.clone(), node.settings.proxy_root.clone());
    fs::create_dir_all(&run_dir).context(run_dir.display())?;
    let leftovers = node.leftovers().await?;
    let supervisor = Supervisor::spawn(node, move |label| events.count(label));
    for (sandbox, is_outdated) in leftovers.live {
        supervisor.adopt(sandbox, is_outdated);
    }
    let deleted = tombstones(&run_dir).context("the tombstones of deleted sandboxes")?;
    for id in leftovers.stale.into_iter().chain(deleted) {
        let (supervisor, tombstone) = (supervisor.clone(), protocol::tombstones(&run_dir).join(&id));
        tokio::spawn(async move {
            supervisor.request(Request::Delete { id }).await;
            let _ = fs::remove_file(tombstone);
        });
    }
    let socket = protocol::socket(&run_dir);
    tokio::select! {
        served = server::serve(&socket, &supervisor) => served.context(socket.display()),
        never = keep_installed(&cni) => match never {},
        never = exporter.serve(metrics_port) => match never {},
        never = keep_used_roots(&containerd, &root) => match never {},
    }
}

/// Returns the ids of the sandboxes whose deletion the plugin could not report.
fn tombstones(run_dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(protocol::tombstones(run_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Installs the plugin and its configuration, which follows the primary network's.
async fn keep_installed(cni: &CniPaths) -> Infallible {
    loop {
        if let Err(error) = install::plugin(&cni.plugin, &cni.bin_dir) {
            tracing::warn!(%error, "could not install the plugin");
        }
        if let Err(error) = install::configuration(&cni.primary_dir, &cni.own_dir) {
            tracing::warn!(%error, "could not write the network configuration");
        }
        sleep(INSTALL_INTERVAL).await;
    }
}

/// Removes the roots of earlier images from which no proxy was started that is left.
async fn keep_used_roots(containerd: &Containerd, root: &Path) -> Infallible {
    loop {
        match remove_unused_roots(containerd, root.to_owned()).await {
            Ok(removed) if removed.is_empty() => {}
            Ok(removed) => tracing::info!(?removed, "removed the roots of earlier images"),
            Err(error) => tracing::warn!(%error, "could not remove the roots of earlier images"),
        }
        sleep(ROOTS_INTERVAL).await;
    }
}

async fn remove_unused_roots(containerd: &Containerd, root: PathBuf) -> Result<Vec<String>> {
    let mut used: BTreeSet<_> = containerd.list(&[]).await?.values().map(proxy::image_of).collect();
    let name = root.file_name().context("the proxies' root has no name")?;
    used.insert(name.to_string_lossy().into_owned());
    // There are thousands of files.
    let removal = tokio::task::spawn_blocking(move || {
        let directory = root.parent().context("the proxies' root has no directory")?;
        rootfs::remove_unused(directory, &used).context(directory.display())
    });
    removal.await?
}
