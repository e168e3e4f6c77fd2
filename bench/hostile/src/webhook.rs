//! The webhook that is attacked, in a cgroup with the memory limit of the Deployment.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::client::Client;

/// The limit in deploy/base, 128Mi, in bytes.
const MEMORY_LIMIT: usize = 128 << 20;
/// How long the webhook may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const START_POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct Webhook {
    folder: PathBuf,
    process: Child,
    cgroup: PathBuf,
    certificate: CertificateDer<'static>,
}

impl Webhook {
    pub(crate) fn start(binary: &str, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["localhost".to_owned()])?;
        fs::write(folder.join("tls.crt"), cert.pem())?;
        fs::write(folder.join("tls.key"), signing_key.serialize_pem())?;
        let process = Command::new(binary)
            .args(["serve", "--listen=127.0.0.1:0", "--health-listen=127.0.0.1:0", "--native-sidecars=enabled"])
            .arg("--tls-cert")
            .arg(folder.join("tls.crt"))
            .arg("--tls-key")
            .arg(folder.join("tls.key"))
            .stderr(fs::File::create(folder.join("log"))?)
            .spawn()?;
        let cgroup = limit_memory(process.id()).ok_or("no cgroup with a memory limit can be made: run it as root")?;
        Ok(Self { folder: folder.to_owned(), process, cgroup, certificate: cert.der().clone() })
    }

    /// What opens connections to it, once it is ready.
    pub(crate) fn client(&self) -> Result<Client, Box<dyn Error>> {
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            let log = fs::read_to_string(self.folder.join("log"))?;
            if let Some((_, rest)) = log.split_once("admission=") {
                let address: SocketAddr = rest.split_whitespace().next().unwrap_or_default().parse()?;
                return Ok(Client::new(address, self.certificate.clone())?);
            }
            thread::sleep(START_POLL_INTERVAL);
        }
        Err("the webhook did not start".into())
    }

    /// The most memory that was ever resident; `None` if the process has ended.
    pub(crate) fn peak_memory(&mut self) -> Result<Option<String>, Box<dyn Error>> {
        if self.process.try_wait()?.is_some() {
            return Ok(None);
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        let kib: u32 = peak.trim().trim_end_matches(" kB").parse()?;
        Ok(Some(format!("{} MiB", kib.div_ceil(1024))))
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        // It has ended already, or ends now.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir(&self.cgroup);
    }
}

/// Puts a process into a cgroup of its own, of version 1 or 2, if this user may make one.
fn limit_memory(pid: u32) -> Option<PathBuf> {
    let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    versions.into_iter().find_map(|(root, limit)| {
        let cgroup = Path::new(root).join("istio-aux-hostile");
        let limited = fs::create_dir_all(&cgroup)
            .and_then(|()| fs::write(cgroup.join(limit), MEMORY_LIMIT.to_string()))
            .and_then(|()| fs::write(cgroup.join("cgroup.procs"), pid.to_string()));
        limited.is_ok().then_some(cgroup)
    })
}
