//! Runs the agent: adopts the proxies of an earlier agent, removes stale ones, and serves the plugin.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use cni::protocol::{self, Request};
use tokio::time::sleep;

use crate::error::{Context, Result};
use crate::install;
use crate::metrics::{EventCounts, Exporter};
use crate::proxy::{Leftover, Node};
use crate::sandbox::{Event, Supervisor};
use crate::server;
use crate::settings::CniPaths;
use crate::status;

const CONFIGURATION_INTERVAL: Duration = Duration::from_secs(10);

/// Runs until a part fails; metrics are served where a port is given.
pub async fn run(node: Node, cni: CniPaths, metrics_port: Option<u16>) -> Result<Infallible> {
    let run_dir = node.settings.paths.run_dir.clone();
    let events = EventCounts::new(&Event::LABELS);
    let metrics = serve_metrics(&node, events.clone(), metrics_port);
    fs::create_dir_all(&run_dir).context(run_dir.display())?;
    let leftovers = node.leftovers().await?;
    let supervisor = Supervisor::spawn(node, move |label| events.count(label));
    for (id, leftover) in leftovers {
        match leftover {
            Leftover::Live { sandbox, is_outdated } => supervisor.adopt(sandbox, is_outdated),
            Leftover::Stale => remove(&supervisor, id),
        }
    }
    for id in tombstones(&run_dir).context("the tombstones of deleted sandboxes")? {
        let (supervisor, tombstone) = (supervisor.clone(), protocol::tombstones(&run_dir).join(&id));
        tokio::spawn(async move {
            supervisor.request(Request::Delete { id }).await;
            let _ = fs::remove_file(tombstone);
        });
    }
    install::plugin(&cni.plugin, &cni.bin_dir).context("the plugin")?;
    let socket = protocol::socket(&run_dir);
    tokio::select! {
        served = server::serve(&socket, &supervisor) => served.context(socket.display()),
        never = follow_primary_network(&cni) => match never {},
        never = metrics => match never {},
    }
}

fn serve_metrics(node: &Node, events: EventCounts, port: Option<u16>) -> impl Future<Output = Infallible> + use<> {
    let (containerd, run_dir, image) = (node.containerd.clone(), node.settings.paths.run_dir.clone(), node.image());
    let read = move || {
        let (containerd, run_dir, image) = (containerd.clone(), run_dir.clone(), image.clone());
        async move { status::gauges(&containerd, &run_dir, &image).await.ok() }
    };
    async move {
        match port {
            Some(port) => Exporter { read, events }.serve(port).await,
            None => std::future::pending().await,
        }
    }
}

fn remove(supervisor: &Supervisor, id: String) {
    let supervisor = supervisor.clone();
    tokio::spawn(async move { supervisor.request(Request::Delete { id }).await });
}

/// Returns the ids of the sandboxes whose deletion the plugin could not report.
fn tombstones(run_dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(protocol::tombstones(run_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

async fn follow_primary_network(cni: &CniPaths) -> Infallible {
    loop {
        if let Err(error) = install::configuration(&cni.primary_dir, &cni.own_dir) {
            tracing::warn!(%error, "could not write the network configuration");
        }
        sleep(CONFIGURATION_INTERVAL).await;
    }
}
