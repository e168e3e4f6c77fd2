//! A sandbox' proxy: what is prepared for it, its two containers, and its certificate's renewals.

mod cgroup;
mod files;
mod spec;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::protocol::Sandbox;
use kube::Client;
use tokio::time::{Instant, sleep, timeout};

use self::files::{SandboxFiles, Validity};
use self::spec::{Cluster, Layout};
use crate::certificate::CertificateAuthority;
use crate::containerd::{CRI_NAMESPACE, Containerd, Error, NewContainer};
use crate::netns;
use crate::pod::{MeshFacts, PodFacts, read_mesh, read_pod};
use crate::sandbox::Proxies;

/// The label of a proxy's container that has the sandbox as JSON, for an agent that adopts it.
const SANDBOX_LABEL: &str = "istio-aux.io/sandbox";
/// Long enough for a proxy on a busy node, and shorter than the plugin waits.
const READY_TIMEOUT: Duration = Duration::from_secs(80);
/// istiod may see the pod on this node a moment later than the kubelet.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(30);
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
}

impl Node {
    /// The sandboxes that have a proxy of an earlier agent's; by [`None`], a container's that is not one that can be used.
    pub async fn sandboxes(&self) -> Result<Vec<(String, Option<Sandbox>)>, Error> {
        let containers = self.containerd.list().await?;
        let mut known = Vec::new();
        for (id, labels) in containers {
            let sandbox = sandbox_of(&labels);
            let sandbox_id = id.rsplit_once('-').map_or(id.as_str(), |(sandbox, _)| sandbox).to_owned();
            // A sandbox lives as long as its pause container.
            let is_alive = self.containerd.is_running(CRI_NAMESPACE, &sandbox_id).await?;
            known.push((sandbox_id, sandbox.filter(|_| is_alive)));
        }
        Ok(known)
    }

    async fn prepare(&self, sandbox: &Sandbox) -> Result<(PodFacts, MeshFacts), String> {
        let pod = read_pod(&self.client, sandbox).await?;
        let mesh = self.mesh().await?;
        let files = self.files(&sandbox.id);
        files.write_pod(&pod, &self.resolv_conf).map_err(|error| format!("the pod's files: {error}"))?;
        let deadline = Instant::now() + CERTIFICATE_TIMEOUT;
        while let Err(error) = self.renew(sandbox, &pod, &mesh).await {
            if Instant::now() >= deadline {
                return Err(error);
            }
            sleep(RETRY_DELAY).await;
        }
        Ok((pod, mesh))
    }

    async fn renew(&self, sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts) -> Result<(), String> {
        let identity = format!("spiffe://{}/ns/{}/sa/{}", mesh.trust_domain, sandbox.namespace, pod.service_account);
        let certificate = self.ca.issue(&identity).await.map_err(|error| error.to_string())?;
        let written = self.files(&sandbox.id).write_certificate(&certificate);
        written.map_err(|error| format!("the certificate's files: {error}"))
    }

    async fn start_containers(&self, sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts) -> Result<u32, String> {
        let parent = cgroup::of_pod(&self.cgroups, sandbox, &pod.qos_class)?;
        let files = self.files(&sandbox.id);
        let log = self.log(&sandbox.id);
        std::fs::create_dir_all(&self.log_dir).map_err(|error| format!("{}: {error}", self.log_dir.display()))?;
        let layout = |cgroup| Layout { root: &self.proxy_root, files: &files.directory, cgroup };

        let id = redirect_id(&sandbox.id);
        let cgroup = format!("{parent}/{id}");
        let spec = spec::redirect(sandbox, pod, layout(&cgroup));
        let new = NewContainer { id: id.clone(), labels: HashMap::new(), spec: &spec, log: &log };
        self.containerd.start(new).await.map_err(|error| error.to_string())?;
        let status = self.containerd.wait(&id).await.map_err(|error| error.to_string())?;
        if status != 0 {
            return Err(format!("istio-iptables ended with {status}: {}", last_line(&log)));
        }
        self.containerd.remove(&id).await.map_err(|error| error.to_string())?;

        let id = proxy_id(&sandbox.id);
        let cgroup = format!("{parent}/{id}");
        let cluster = Cluster { id: &self.ca.cluster, domain: &self.cluster_domain };
        let spec = spec::proxy(sandbox, pod, mesh, cluster, layout(&cgroup));
        let label = serde_json::json!(sandbox).to_string();
        let labels = HashMap::from([(SANDBOX_LABEL.to_owned(), label)]);
        let new = NewContainer { id, labels, spec: &spec, log: &log };
        self.containerd.start(new).await.map_err(|error| error.to_string())
    }

    async fn remove_containers(&self, id: &str) -> Result<(), Error> {
        self.containerd.remove(&redirect_id(id)).await?;
        self.containerd.remove(&proxy_id(id)).await
    }

    /// Returns when the proxy's process has ended. While containerd is away, nothing is known.
    async fn ended(&self, id: &str) {
        while let Err(error) = self.containerd.wait(id).await {
            if error.is_not_found() {
                return;
            }
            tracing::warn!(container = id, %error, "cannot watch a proxy");
            sleep(RETRY_DELAY).await;
        }
    }

    /// Renews the certificate at half of its life, for as long as it is polled.
    async fn keep_fresh(&self, sandbox: &Sandbox) {
        loop {
            sleep(self.files(&sandbox.id).renewal_due_in()).await;
            let renewed = async {
                let (pod, mesh) = (read_pod(&self.client, sandbox).await?, self.mesh().await?);
                self.renew(sandbox, &pod, &mesh).await
            };
            if let Err(error) = renewed.await {
                tracing::warn!(sandbox = sandbox.id, error, "could not renew a certificate");
                sleep(RENEWAL_RETRY_DELAY).await;
            }
        }
    }

    async fn mesh(&self) -> Result<MeshFacts, String> {
        read_mesh(&self.client, &self.mesh_namespace, &self.mesh_config).await
    }

    fn files(&self, id: &str) -> SandboxFiles {
        SandboxFiles::of(&self.run_dir, id)
    }

    fn log(&self, id: &str) -> PathBuf {
        log_of(&self.log_dir, id)
    }

    async fn start_until_ready(&self, sandbox: &Sandbox) -> Result<(), String> {
        let began = Instant::now();
        self.remove_containers(&sandbox.id).await.map_err(|error| error.to_string())?;
        let (pod, mesh) = self.prepare(sandbox).await?;
        let prepared = began.elapsed();
        let pid = self.start_containers(sandbox, &pod, &mesh).await?;
        let started = began.elapsed();
        let id = proxy_id(&sandbox.id);
        tokio::select! {
            ready = netns::wait_until_ready(pid, READY_TIMEOUT) => ready,
            () = self.ended(&id) => Err("the proxy ended before it was ready".to_owned()),
        }
        .map_err(|error| format!("{error}; its last line: {}", last_line(&self.log(&sandbox.id))))?;
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
}

impl Proxies for Node {
    async fn start(&self, sandbox: &Sandbox) -> Result<(), String> {
        let started = timeout(READY_TIMEOUT, self.start_until_ready(sandbox)).await;
        started.unwrap_or_else(|_| {
            Err(format!(
                "the proxy was not ready after {READY_TIMEOUT:?}; its last line: {}",
                last_line(&self.log(&sandbox.id))
            ))
        })
    }

    async fn attend(&self, sandbox: &Sandbox) {
        let id = proxy_id(&sandbox.id);
        tokio::select! {
            () = self.ended(&id) => {}
            () = self.keep_fresh(sandbox) => {}
        }
    }

    async fn remove(&self, id: &str) -> Result<(), String> {
        self.remove_containers(id).await.map_err(|error| error.to_string())?;
        self.files(id).remove().map_err(|error| format!("the sandbox' files: {error}"))?;
        remove_log(&self.log_dir, id).map_err(|error| format!("the proxy's log: {error}"))
    }
}

/// The sandbox whose proxy's container has these labels.
pub(crate) fn sandbox_of(labels: &HashMap<String, String>) -> Option<Sandbox> {
    serde_json::from_str(labels.get(SANDBOX_LABEL)?).ok()
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

fn proxy_id(sandbox: &str) -> String {
    format!("{sandbox}-proxy")
}

fn redirect_id(sandbox: &str) -> String {
    format!("{sandbox}-redirect")
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().next_back().unwrap_or("none").chars().take(300).collect()
}
