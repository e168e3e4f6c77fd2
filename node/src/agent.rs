//! Runs the agent: serves the plugin, and compares what runs on the node with what should.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::events::EventNote;
use cni::protocol;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::time::{sleep, timeout};

use crate::containerd::Containerd;
use crate::error::{Context, Error, Result};
use crate::identities::Identities;
use crate::install;
use crate::metrics::{EventCounts, Exporter};
use crate::pod_events::{self, PodEvents};
use crate::proxy::{self, Node};
use crate::rootfs;
use crate::sandbox::{Event, Supervisor};
use crate::server;
use crate::settings::CniPaths;
use crate::status::pod_of;

const SCAN_INTERVAL: Duration = Duration::from_secs(30);
const SCAN_RETRY_DELAY: Duration = Duration::from_secs(5);
const INSTALL_INTERVAL: Duration = Duration::from_secs(10);
const ROOTS_INTERVAL: Duration = Duration::from_hours(1);
const LOCK_RETRY_DELAY: Duration = Duration::from_secs(1);
const NO_PROXY: &str =
    "the pod runs without a proxy, outside of the mesh; next: delete it once the agent of its node is ready";

/// Runs until a part fails; metrics are served where a port is given.
pub async fn run(node: Node, cni: CniPaths, metrics_port: Option<u16>) -> Result<Infallible> {
    raise_open_files().context("the limit of open files")?;
    let run_dir = node.settings.paths.run_dir.clone();
    let events = EventCounts::new(&Event::LABELS);
    let exporter = Exporter {
        events: events.clone(),
        ended: Arc::clone(&node.ended),
        containerd: node.containerd.clone(),
        run_dir: run_dir.clone(),
        image: node.image(),
    };
    // Only root enters it: the proxies' files are mounted into their containers.
    fs::create_dir_all(&run_dir)
        .and_then(|()| fs::set_permissions(&run_dir, Permissions::from_mode(0o700)))
        .context(run_dir.display())?;
    let _only = only_agent(&run_dir).await?;
    let node = Arc::new(node);
    let (pod_events, notes) = PodEvents::new();
    let about_states = pod_events.clone();
    let supervisor = Supervisor::spawn(Arc::clone(&node), move |sandbox, before, event| {
        if let Some(label) = event.label() {
            events.count(label);
        }
        if let Some(note) = before.note(event) {
            about_states.send(sandbox, note);
        }
    });
    let socket = protocol::socket(&run_dir);
    tokio::select! {
        served = server::serve(&socket, &supervisor) => served.context(socket.display()),
        never = keep_reconciled(&node, &supervisor, &pod_events) => match never {},
        never = pod_events::publish(&node.client, notes) => match never {},
        () = supervisor.stopped() => Err(Error::new("the task that starts proxies has panicked")),
        never = keep_installed(&cni, &supervisor) => match never {},
        never = forget_due_keys(&node.identities) => match never {},
        never = exporter.serve(metrics_port) => match never {},
        never = keep_used_roots(&node.containerd, &node.settings.proxy_root) => match never {},
    }
}

/// Lets the agent open as many files as the container runtime lets it: it holds the network of each pod, and sockets besides.
fn raise_open_files() -> nix::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
}

/// Waits until no other agent manages this node's proxies: one may outlive its force-deleted pod.
async fn only_agent(run_dir: &Path) -> Result<File> {
    let path = run_dir.join("agent.lock");
    let lock = File::create(&path).context(path.display())?;
    while let Err(error) = lock.try_lock() {
        tracing::warn!(%error, "another agent runs on this node");
        sleep(LOCK_RETRY_DELAY).await;
    }
    Ok(lock)
}

/// Compares what runs with what should, again and again: an event may have been missed.
async fn keep_reconciled(node: &Node, supervisor: &Supervisor, events: &PodEvents) -> Infallible {
    // How often in a row each was found.
    let mut without_proxy = BTreeMap::<String, u32>::new();
    loop {
        let scanned = async {
            supervisor.reconcile(node.scan().await?);
            let found = proxy::pods_without_proxy(&node.containerd, &node.settings.paths.run_dir).await?;
            let mut times = BTreeMap::new();
            for sandbox in found {
                let pod = pod_of(&sandbox);
                let before = without_proxy.get(&pod).copied().unwrap_or_default();
                // A sandbox may end between the requests, so only one found twice in a row is reported.
                if before > 0 {
                    tracing::warn!(pod, "a pod of the runtime class runs without a proxy: it is not in the mesh");
                }
                if before == 1 {
                    events.send(&sandbox, EventNote::warning("NoProxy", NO_PROXY.to_owned()));
                }
                times.insert(pod, before.saturating_add(1));
            }
            Ok::<_, Error>(times)
        };
        let pause = match scanned.await {
            Ok(found) => {
                without_proxy = found;
                SCAN_INTERVAL
            }
            Err(error) => {
                tracing::warn!(%error, "cannot scan the node");
                SCAN_RETRY_DELAY
            }
        };
        // Scan earlier if notified.
        let _ = timeout(pause, supervisor.scan_wanted.notified()).await;
    }
}

/// Installs the plugin and its configuration, which follows the primary network's.
async fn keep_installed(cni: &CniPaths, supervisor: &Supervisor) -> Infallible {
    loop {
        let installed = install::plugin(&cni.plugin, &cni.bin_dir).context("the plugin is not installed").and(
            install::configuration(&cni.primary_dir, &cni.own_dir).context("the network configuration is not written"),
        );
        if let Err(error) = &installed {
            tracing::warn!(%error, "no pod of the runtime class can start");
        }
        supervisor.installed(installed);
        sleep(INSTALL_INTERVAL).await;
    }
}

/// Forgets certificates, with their keys, at half of their life.
async fn forget_due_keys(identities: &Identities) -> Infallible {
    loop {
        sleep(SCAN_INTERVAL).await;
        identities.forget_due();
    }
}

/// Removes the root directories of earlier images that no remaining proxy uses.
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
    // Blocking: thousands of files.
    let removal = tokio::task::spawn_blocking(move || {
        let directory = root.parent().context("the proxies' root has no directory")?;
        rootfs::remove_unused(directory, &used).context(directory.display())
    });
    removal.await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn second_agent_waits_for_the_first() {
        let run_dir = tempfile::tempdir().unwrap();
        let first = only_agent(run_dir.path()).await.unwrap();
        assert!(timeout(Duration::from_mins(1), only_agent(run_dir.path())).await.is_err());
        drop(first);
        assert!(only_agent(run_dir.path()).await.is_ok());
    }
}
