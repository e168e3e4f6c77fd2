//! A sandbox' proxy: what is prepared for it, its two containers, and its certificate's renewals.

mod cgroup;
mod files;
mod ids;
mod istio;
mod ports;
mod spec;
mod upgrade;

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::protocol::Sandbox;
use kube::Client;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use self::files::{SandboxFiles, Validity};
pub(crate) use self::ids::sandbox_of_proxy;
use self::ids::{generation_of, proxy_id, redirect_id, sandbox_id};
use self::ports::Ports;
use self::spec::{Cluster, Layout};
use crate::certificate::CertificateAuthority;
use crate::containerd::{CRI_NAMESPACE, Containerd, NAMESPACE, NewContainer};
use crate::error::{Context, Error, Result};
use crate::netns;
use crate::pod::{MeshFacts, PodFacts, read_mesh, read_pod};
use crate::sandbox::Proxies;

/// The label that names the image a proxy was started from.
const ROOT_LABEL: &str = "istio-aux.io/proxy-root";
/// Long enough for a proxy on a busy node, and shorter than the plugin waits.
const READY_TIMEOUT: Duration = Duration::from_secs(80);
/// istiod may see the pod on this node a moment later than the kubelet.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(30);
/// From the end of ADD to the start of the pause container, on a busy node.
const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(500);
const RENEWAL_RETRY_DELAY: Duration = Duration::from_secs(30);

/// The node, as the proxies of its pods need it.
pub struct Node {
    /// The API server.
    pub client: Client,
    /// containerd.
    pub containerd: Containerd,
    /// istiod.
    pub ca: CertificateAuthority,
    /// istiod's namespace.
    pub mesh_namespace: String,
    /// The `ConfigMap` with the mesh's configuration.
    pub mesh_config: String,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The root of Istio's proxy image, on the node.
    pub proxy_root: PathBuf,
    /// The node's cgroups, as the agent sees them.
    pub cgroups: PathBuf,
    /// The agent's directory below `/run`.
    pub run_dir: PathBuf,
    /// Where the proxies' output goes.
    pub log_dir: PathBuf,
    /// How the agent finds names, which is how the proxies do.
    pub resolv_conf: PathBuf,
    /// How long a proxy that was upgraded may serve the connections that it has.
    pub drain_timeout: Duration,
    /// How many proxies are upgraded at a time.
    pub upgrades: Semaphore,
}

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

    async fn prepare(&self, sandbox: &Sandbox) -> Result<(PodFacts, MeshFacts)> {
        let pod = read_pod(&self.client, sandbox).await?;
        let mesh = self.mesh().await?;
        let files = self.files(&sandbox.id);
        files.write_pod(sandbox, &pod, &self.resolv_conf).context("the pod's files")?;
        let deadline = Instant::now() + CERTIFICATE_TIMEOUT;
        while let Err(error) = self.renew(sandbox, &pod, &mesh).await {
            if Instant::now() >= deadline {
                return Err(error);
            }
            sleep(RETRY_DELAY).await;
        }
        Ok((pod, mesh))
    }

    async fn renew(&self, sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts) -> Result<()> {
        let identity = format!("spiffe://{}/ns/{}/sa/{}", mesh.trust_domain, sandbox.namespace, pod.service_account);
        let certificate = self.ca.issue(&identity).await?;
        let written = self.files(&sandbox.id).write_certificate(&certificate);
        written.context("the certificate's files")
    }

    /// Redirects the pod's traffic to its proxy.
    async fn redirect(&self, sandbox: &Sandbox, pod: &PodFacts) -> Result<()> {
        self.run_in_network(sandbox, pod, |layout| spec::redirect(sandbox, pod, layout)).await
    }

    /// Leads who asks for a proxy's ordinary ports to the one that serves.
    async fn lead_to(&self, generation: u32, sandbox: &Sandbox, pod: &PodFacts) -> Result<()> {
        let files = self.files(&sandbox.id);
        const RULES: &str = "the rules for the proxy's ports";
        let has_jumps = files.has_jumps();
        for is_ipv6 in [false, true] {
            if sandbox.addresses.iter().any(|address| address.is_ipv6() == is_ipv6) {
                let rules = files.write_rules(&Ports::rules(generation, is_ipv6, has_jumps)).context(RULES)?;
                self.run_in_network(sandbox, pod, |layout| spec::apply_rules(sandbox, &rules, is_ipv6, layout)).await?;
            }
        }
        files.write_jumps().context(RULES)
    }

    /// Runs a container that changes the pod's network, to its end.
    async fn run_in_network(&self, sandbox: &Sandbox, pod: &PodFacts, spec: impl Fn(Layout) -> Value) -> Result<()> {
        let id = redirect_id(&sandbox.id);
        let log = self.log(&sandbox.id);
        self.containerd.remove(&id).await?;
        self.start_container(&id, HashMap::new(), sandbox, pod, spec).await?;
        let status = self.containerd.wait(&id).await?;
        self.containerd.remove(&id).await?;
        if status != 0 {
            return Err(Error::new(format_args!("iptables ended with {status}: {}", last_line(&log))));
        }
        Ok(())
    }

    async fn start_proxy(&self, generation: u32, sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts) -> Result<u32> {
        let cluster = Cluster { id: &self.ca.cluster, domain: &self.cluster_domain };
        let labels = HashMap::from([(ROOT_LABEL.to_owned(), self.image())]);
        let ports = Ports::of(generation);
        let spec = |layout: Layout| spec::proxy(sandbox, pod, mesh, cluster, ports, layout);
        self.start_container(&proxy_id(&sandbox.id, generation), labels, sandbox, pod, spec).await
    }

    async fn start_container(
        &self,
        id: &str,
        labels: HashMap<String, String>,
        sandbox: &Sandbox,
        pod: &PodFacts,
        spec: impl Fn(Layout) -> Value,
    ) -> Result<u32> {
        let cgroup = format!("{}/{id}", cgroup::of_pod(&self.cgroups, sandbox, &pod.qos_class)?);
        let (files, log) = (self.files(&sandbox.id), self.log(&sandbox.id));
        std::fs::create_dir_all(&self.log_dir).context(self.log_dir.display())?;
        let spec = spec(Layout { root: &self.proxy_root, files: &files.directory, cgroup: &cgroup });
        let new = NewContainer { id: id.to_owned(), labels, spec: &spec, log: &log };
        Ok(self.containerd.start(new).await?)
    }

    /// The containers of a sandbox.
    async fn containers(&self, sandbox: &str) -> Result<Vec<String>> {
        let all = self.containerd.list().await?;
        Ok(all.into_keys().filter(|id| sandbox_id(id) == sandbox).collect())
    }

    async fn remove_containers(&self, sandbox: &str) -> Result<()> {
        for id in self.containers(sandbox).await? {
            self.containerd.remove(&id).await?;
        }
        Ok(())
    }

    /// The container of the proxy that serves.
    fn serving(&self, sandbox: &str) -> String {
        proxy_id(sandbox, self.files(sandbox).generation().unwrap_or_default())
    }

    /// Names the image of new proxies.
    #[must_use]
    pub fn image(&self) -> String {
        self.proxy_root.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns when the proxy's process has ended. While containerd is away, nothing is known.
    async fn ended(&self, id: &str) {
        // A task that an agent has created and not started would be waited for in vain.
        while !matches!(self.containerd.pid(NAMESPACE, id).await, Ok(None)) {
            let Err(error) = self.containerd.wait(id).await else { return };
            if error.is_not_found() {
                return;
            }
            tracing::warn!(container = id, %error, "cannot watch a proxy");
            sleep(RETRY_DELAY).await;
        }
    }

    /// Renews the certificate at half of its life, for as long as it is polled.
    async fn keep_fresh(&self, sandbox: &Sandbox) -> Infallible {
        loop {
            sleep(self.files(&sandbox.id).renewal_due_in()).await;
            let renewed = async {
                let (pod, mesh) = (read_pod(&self.client, sandbox).await?, self.mesh().await?);
                self.renew(sandbox, &pod, &mesh).await
            };
            if let Err(error) = renewed.await {
                tracing::warn!(sandbox = sandbox.id, %error, "could not renew a certificate");
                sleep(RENEWAL_RETRY_DELAY).await;
            }
        }
    }

    async fn mesh(&self) -> Result<MeshFacts> {
        read_mesh(&self.client, &self.mesh_namespace, &self.mesh_config).await
    }

    fn files(&self, id: &str) -> SandboxFiles {
        SandboxFiles::of(&self.run_dir, id)
    }

    fn log(&self, id: &str) -> PathBuf {
        log_of(&self.log_dir, id)
    }

    async fn start_until_ready(&self, sandbox: &Sandbox) -> Result<()> {
        let began = Instant::now();
        self.containerd.remove(&self.serving(&sandbox.id)).await?;
        let (pod, mesh) = self.prepare(sandbox).await?;
        let prepared = began.elapsed();
        let served = self.files(&sandbox.id).generation();
        match served {
            // The pod's network is as the proxy before this one left it.
            Some(generation) if generation > 0 => self.lead_to(generation, sandbox, &pod).await?,
            Some(_) => {}
            None => self.redirect(sandbox, &pod).await?,
        }
        let generation = served.unwrap_or_default();
        let pid = self.start_proxy(generation, sandbox, &pod, &mesh).await?;
        let started = began.elapsed();
        self.until_ready(pid, generation, sandbox).await?;
        if served.is_none() {
            self.write_generation(generation, sandbox)?;
        }
        let ready = began.elapsed();
        tracing::info!(
            sandbox = sandbox.id,
            ?prepared,
            ?started,
            ?ready,
            "the proxy serves; times since it was asked for"
        );
        Ok(())
    }

    /// Limits the time of a proxy's start.
    async fn in_time(&self, sandbox: &Sandbox, start: impl Future<Output = Result<()>>) -> Result<()> {
        timeout(READY_TIMEOUT, start).await.unwrap_or_else(|_| {
            let line = last_line(&self.log(&sandbox.id));
            Err(Error::new(format_args!("the proxy was not ready after {READY_TIMEOUT:?}; its last line: {line}")))
        })
    }

    /// From now on, this proxy of the sandbox serves.
    fn write_generation(&self, generation: u32, sandbox: &Sandbox) -> Result<()> {
        let written = self.files(&sandbox.id).write_generation(generation);
        written.context("the sandbox' files")
    }

    async fn until_ready(&self, pid: u32, generation: u32, sandbox: &Sandbox) -> Result<()> {
        let id = proxy_id(&sandbox.id, generation);
        tokio::select! {
            ready = netns::wait_until_ready(pid, Ports::of(generation).readiness, READY_TIMEOUT) => ready,
            () = self.ended(&id) => Err(Error::new("the proxy ended before it was ready")),
        }
        .map_err(|error| Error::new(format_args!("{error}; its last line: {}", last_line(&self.log(&sandbox.id)))))
    }
}

impl Proxies for Node {
    async fn start(&self, sandbox: &Sandbox) -> Result<()> {
        self.in_time(sandbox, self.start_until_ready(sandbox)).await
    }

    async fn attend(&self, sandbox: &Sandbox) {
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
        remove_log(&self.log_dir, id).context("the proxy's log")
    }
}

/// The sandbox that a proxy's container belongs to; nothing for another container.
pub(crate) fn sandbox_of(run_dir: &Path, id: &str) -> Option<Sandbox> {
    SandboxFiles::of(run_dir, sandbox_of_proxy(id)?).sandbox()
}

/// Names the image of the proxy whose container has these labels.
pub(crate) fn image_of(labels: &HashMap<String, String>) -> String {
    labels.get(ROOT_LABEL).cloned().unwrap_or_default()
}

/// Whether a proxy's container is of before or after the one that serves, or is that one.
pub(crate) fn age(run_dir: &Path, id: &str) -> Ordering {
    generation_of(id).cmp(&SandboxFiles::of(run_dir, sandbox_id(id)).generation().or(Some(0)))
}

/// Whether a container is of a proxy that serves.
pub(crate) fn is_serving(run_dir: &Path, id: &str) -> bool {
    age(run_dir, id) == Ordering::Equal
}

/// The file that gets the output of a sandbox' proxy.
pub(crate) fn log_of(log_dir: &Path, id: &str) -> PathBuf {
    log_dir.join(format!("{id}.log"))
}

/// Removes that file, if it is there.
pub(crate) fn remove_log(log_dir: &Path, id: &str) -> std::io::Result<()> {
    match std::fs::remove_file(log_of(log_dir, id)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How long the certificate of a sandbox' proxy is valid for; nothing where it has expired.
pub(crate) fn certificate_expires_in(run_dir: &Path, id: &str) -> Option<Duration> {
    let left = SandboxFiles::of(run_dir, id).validity()?.not_after.checked_sub(files::now())?;
    Some(Duration::from_secs(left))
}

/// When the certificate of a sandbox' proxy is to be renewed, in seconds since 1970.
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
    fn the_proxy_that_serves_is_the_first_until_another_is_written_down() {
        let run_dir = tempfile::tempdir().unwrap();
        let files = SandboxFiles::of(run_dir.path(), "abc");
        std::fs::create_dir_all(&files.directory).unwrap();
        let ages = || [0, 1, 2].map(|generation| age(run_dir.path(), &proxy_id("abc", generation)));
        assert_eq!((files.generation(), ages()), (None, [Ordering::Equal, Ordering::Greater, Ordering::Greater]));
        files.write_generation(1).unwrap();
        assert_eq!((files.generation(), ages()), (Some(1), [Ordering::Less, Ordering::Equal, Ordering::Greater]));
    }
}
