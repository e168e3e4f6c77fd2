//! What a sandbox' proxy reads, in a directory of its own below `/run`, where no key reaches a disk.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use x509_parser::pem::parse_x509_pem;

use super::spec::PROXY_USER;
use crate::certificate::WorkloadCertificate;
use crate::pod::PodFacts;

/// The directory of one sandbox.
#[derive(Debug)]
pub(super) struct SandboxFiles {
    /// Where it is.
    pub(super) directory: PathBuf,
}

/// A certificate's life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    /// From its begin to its end.
    pub(super) whole: Duration,
    /// From now to its end.
    pub(super) left: Duration,
}

impl SandboxFiles {
    /// The directory of a sandbox, which may not be there yet.
    #[must_use]
    pub(super) fn of(run_dir: &Path, id: &str) -> Self {
        Self { directory: run_dir.join("sandbox").join(id) }
    }

    /// Writes what pilot-agent reads of the pod, and how it finds names.
    pub(super) fn write_pod(&self, pod: &PodFacts, resolv_conf: &Path) -> io::Result<()> {
        let directory = self.directory.join("pod");
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o711))?;
        fs::write(directory.join("labels"), downward_api(&pod.labels))?;
        fs::write(directory.join("annotations"), downward_api(&pod.annotations))?;
        fs::write(self.directory.join("hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
        fs::copy(resolv_conf, self.directory.join("resolv.conf"))?;
        Ok(())
    }

    /// Writes the certificate. The chain is last, because pilot-agent reads all three when one has changed.
    pub(super) fn write_certificate(&self, certificate: &WorkloadCertificate) -> io::Result<()> {
        let directory = self.directory.join("certificate");
        fs::create_dir_all(&directory)?;
        chown(&directory, Some(PROXY_USER), Some(PROXY_USER))?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        replace(&directory, "key.pem", &certificate.key)?;
        replace(&directory, "root-cert.pem", &certificate.root)?;
        replace(&directory, "cert-chain.pem", &certificate.chain)
    }

    /// How long until half of the certificate's life is over; nothing where there is none that can be read.
    #[must_use]
    pub(super) fn renewal_due_in(&self) -> Duration {
        self.certificate_life().map_or(Duration::ZERO, |life| life.left.saturating_sub(life.whole / 2))
    }

    /// Nothing where there is no certificate that can be read, or where it has expired.
    #[must_use]
    pub(super) fn certificate_life(&self) -> Option<Life> {
        let chain = fs::read(self.directory.join("certificate/cert-chain.pem")).ok()?;
        let (_, pem) = parse_x509_pem(&chain).ok()?;
        let validity = pem.parse_x509().ok()?.validity().clone();
        let whole = u64::try_from(validity.not_after.timestamp() - validity.not_before.timestamp()).ok()?;
        let left = validity.time_to_expiration()?.try_into().ok()?;
        Some(Life { whole: Duration::from_secs(whole), left })
    }

    /// Removes the directory.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}"));
    fs::write(&temporary, text)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o400))?;
    chown(&temporary, Some(PROXY_USER), Some(PROXY_USER))?;
    fs::rename(temporary, directory.join(name))
}

/// Labels or annotations as a volume of the downward API has them.
fn downward_api(map: &BTreeMap<String, String>) -> String {
    map.iter().fold(String::new(), |text, (key, value)| text + key + "=" + &json!(value).to_string() + "\n")
}
