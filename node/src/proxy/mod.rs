//! The proxy of a sandbox: its files, its containers, its certificate and its upgrades.

mod cgroup;
mod containers;
mod cpu;
mod environment;
mod files;
mod ids;
mod labels;
mod liveness;
mod network;
mod ports;
mod remove;
mod retire;
mod rules;
mod scan;
mod serve;
mod spec;
mod start;
mod upgrade;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cni::logger::rotated;
use cni::protocol::Sandbox;
use kube::Client;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

pub(crate) use self::files::SandboxFiles;
use self::files::existing;
use self::ids::proxy_id;
pub(crate) use self::ids::sandbox_of_proxy;
pub(crate) use self::labels::image_of;
pub(crate) use self::scan::pods_without_proxy;
use crate::containerd::Containerd;
use crate::ended_counters::EndedCounters;
use crate::error::{Context, Error, Result};
use crate::identities::Identities;
use crate::netns::Network;
use crate::sandbox::Proxies;
use crate::settings::Settings;
use crate::start_limiter::StartLimiter;

const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Pause after a record could not be read.
const RECORD_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Begins the errors of the files that record the serving proxy.
const RECORD: &str = "the record of the serving proxy";

/// Holds the connections and settings, and manages the proxies of its pods.
pub struct Node {
    /// The API server.
    pub client: Client,
    /// containerd.
    pub containerd: Containerd,
    /// The settings.
    pub settings: Settings,
    /// The certificates of the pods' service accounts.
    pub identities: Identities,
    /// Limits the upgrades at a time.
    pub upgrades: Semaphore,
    /// Limits the renewals at a time: each reads its pod.
    pub renewals: Semaphore,
    /// Limits the starts at a time, which would delay each other until none is ready in time.
    pub starts: StartLimiter,
    /// Limits the restarts of proxies that have served. They do not wait behind starts, which a pod can make hang.
    pub restarts: StartLimiter,
    /// What proxies had counted when they ended.
    pub ended: Arc<EndedCounters>,
}

impl Node {
    /// Returns the container id of the proxy that serves.
    fn serving(&self, sandbox: &str) -> Result<String> {
        let revision = self.files(sandbox).revision().context(RECORD)?;
        Ok(proxy_id(sandbox, revision.unwrap_or_default()))
    }

    /// Opens the network namespace of a container of the sandbox; `None` if its process does not run.
    async fn network(&self, id: &str, sandbox: &Sandbox) -> Result<Option<Network>> {
        let Some(pid) = self.containerd.pid(id).await? else { return Ok(None) };
        let network = Network::of(pid, &sandbox.addresses)?;
        // Its number may be another process' since.
        let is_running = self.containerd.pid(id).await? == Some(pid);
        Ok(is_running.then_some(network))
    }

    /// Names the image of new proxies.
    #[must_use]
    pub fn image(&self) -> String {
        self.settings.proxy_root.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn files(&self, id: &str) -> SandboxFiles {
        SandboxFiles::of(&self.settings.paths.run_dir, id)
    }

    fn log(&self, id: &str) -> PathBuf {
        log_of(&self.settings.paths.log_dir, id)
    }

    /// Adds the last line of the sandbox' log to an error, if there is one.
    fn with_last_line(&self, error: Error, id: &str) -> Error {
        let text = end_of(&self.log(id)).unwrap_or_default();
        let Some(line) = text.lines().next_back() else { return error };
        let line: String = line.chars().take(300).collect();
        Error::new(format_args!("{error}; its last line: {line}"))
    }
}

impl Proxies for Node {
    async fn start(&self, sandbox: &Sandbox) -> Result<()> {
        let asked = Instant::now();
        let start = async { Self::in_time(asked, Box::pin(self.start_until_ready(sandbox))).await };
        let has_served = matches!(self.files(&sandbox.id).revision(), Ok(Some(_)));
        let limiter = if has_served { &self.restarts } else { &self.starts };
        let started = limiter.run(start::QUEUE_TIMEOUT, start).await;
        // Beside a proxy that serves, as in an upgrade, the last line may be that one's.
        started.map_err(|error| self.with_last_line(error, &sandbox.id))
    }

    async fn maintain(&self, sandbox: &Sandbox) {
        let id = loop {
            match self.serving(&sandbox.id) {
                Ok(id) => break id,
                Err(error) => tracing::warn!(sandbox = sandbox.id, %error, "cannot maintain a proxy"),
            }
            sleep(RECORD_RETRY_DELAY).await;
        };
        tokio::select! {
            () = self.ended(&id) => {}
            () = self.until_stuck(&id, sandbox) => self.end(&id).await,
            never = self.keep_fresh(sandbox) => match never {},
            never = self.retire_predecessors(sandbox) => match never {},
        }
    }

    async fn upgrade(&self, sandbox: &Sandbox) -> Result<()> {
        let _permit = tokio::select! {
            permit = self.upgrades.acquire() => permit?,
            () = self.maintain(sandbox) => return Err(Error::new("the proxy ended before its upgrade")),
        };
        self.start_successor(sandbox).await
    }

    fn on_disk(&self) -> BTreeMap<String, Option<Sandbox>> {
        self.on_disk()
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let sandbox = self.files(id).sandbox();
        for (container, labels) in self.containers(id).await? {
            self.remove_container(&container, &labels, sandbox.as_ref()).await?;
        }
        self.files(id).remove().context("the sandbox' files")?;
        remove_log(&self.settings.paths.log_dir, id).context("the proxy's log")
    }
}

/// Returns the log file of a sandbox' proxy.
pub(crate) fn log_of(log_dir: &Path, id: &str) -> PathBuf {
    log_dir.join(format!("{id}.log"))
}

/// Removes that file, and the one before its last rotation, if they exist.
pub(crate) fn remove_log(log_dir: &Path, id: &str) -> std::io::Result<()> {
    let log = log_of(log_dir, id);
    for file in [rotated(&log), log] {
        existing(std::fs::remove_file(file))?;
    }
    Ok(())
}

/// Returns the end of a file, as text.
fn end_of(file: &Path) -> std::io::Result<String> {
    let mut file = File::open(file)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(4096)))?;
    let mut end = Vec::new();
    file.take(4096).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    /// Returns a node on which nothing can be reached.
    pub(super) fn node(run_dir: &Path) -> Node {
        let [run_dir, root] = [run_dir.to_owned(), run_dir.join("root")];
        let paths = [format!("--run-dir={}", run_dir.display()), format!("--ca-root={}", root.display())];
        let options = ["agent", "--proxy-root=/proxy/1"].map(str::to_owned).into_iter().chain(paths);
        let matches = Settings::augment_args(clap::Command::new("agent")).get_matches_from(options);
        let api = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        Node {
            client: Client::try_from(api).unwrap(),
            containerd: Containerd::at(Path::new("/no/such/socket")).unwrap(),
            settings: Settings::from_arg_matches(&matches).unwrap(),
            identities: Identities::default(),
            upgrades: Semaphore::new(1),
            renewals: Semaphore::new(1),
            starts: StartLimiter::new(1, Duration::MAX),
            restarts: StartLimiter::new(1, Duration::MAX),
            ended: Arc::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn restart_does_not_wait_behind_starts_that_hang() {
        let run_dir = tempfile::tempdir().unwrap();
        let node = node(run_dir.path());
        let hangs = node.starts.run(Duration::MAX, std::future::pending::<Result<()>>());
        let sandbox = Sandbox { id: "abc".to_owned(), ..Sandbox::default() };
        let both = async {
            let waits = node.start(&sandbox).await.unwrap_err().to_string();
            assert!(waits.contains("not started within"), "{waits}");
            std::fs::create_dir_all(&node.files("abc").directory).unwrap();
            node.files("abc").write_revision(0).unwrap();
            let began = node.start(&sandbox).await.unwrap_err().to_string();
            assert!(!began.contains("not started within"), "{began}");
        };
        tokio::select! {
            biased;
            _ = hangs => {}
            () = both => {}
        }
    }

    #[tokio::test]
    async fn unreadable_record_starts_no_second_proxy() {
        let run_dir = tempfile::tempdir().unwrap();
        let node = node(run_dir.path());
        let sandbox = Sandbox { id: "abc".to_owned(), ..Sandbox::default() };
        std::fs::create_dir_all(node.files("abc").directory.join("revision")).unwrap();
        let error = node.start(&sandbox).await.unwrap_err().to_string();
        assert!(error.starts_with("the record of the serving proxy: "), "{error}");
        assert!(node.serving("abc").is_err(), "none is known to serve, so none is looked after or ended");
        let maintained = tokio::time::timeout(Duration::from_millis(100), Box::pin(node.maintain(&sandbox))).await;
        assert!(maintained.is_err(), "it is not known which proxy serves, so none is ended or started");
    }
}
