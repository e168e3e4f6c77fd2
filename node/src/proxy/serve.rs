//! A proxy while it serves: waits for its end, and renews its certificate.

use std::convert::Infallible;
use std::time::Duration;

use cni::protocol::Sandbox;
use tokio::time::sleep;

use super::{Node, RETRY_DELAY};
use crate::containerd::NAMESPACE;
use crate::error::{Context, Result};
use crate::pod::{MeshFacts, PodFacts, read_mesh, read_pod};

const RENEWAL_RETRY_DELAY: Duration = Duration::from_secs(30);

impl Node {
    /// Returns when the proxy's process has ended. Waits while containerd is unavailable.
    pub(super) async fn ended(&self, id: &str) {
        // `wait` would not return for a task that was created and not started.
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
    pub(super) async fn keep_fresh(&self, sandbox: &Sandbox) -> Infallible {
        loop {
            sleep(self.files(&sandbox.id).renewal_due_in()).await;
            let renewed = async {
                let pod = read_pod(&self.client, sandbox).await?;
                let mesh = read_mesh(&self.client, &self.settings).await?;
                self.renew(sandbox, &pod, &mesh).await
            };
            if let Err(error) = renewed.await {
                tracing::warn!(sandbox = sandbox.id, %error, "could not renew a certificate");
                sleep(RENEWAL_RETRY_DELAY).await;
            }
        }
    }

    /// Returns true if there is no certificate, or half of its life is over.
    pub(super) fn needs_certificate(&self, id: &str) -> bool {
        self.files(id).renewal_due_in().is_zero()
    }

    pub(super) async fn renew(&self, sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts) -> Result<()> {
        let identity = format!("spiffe://{}/ns/{}/sa/{}", mesh.trust_domain, sandbox.namespace, pod.service_account);
        let certificate = self.settings.ca.issue(&identity).await?;
        self.files(&sandbox.id).write_certificate(&certificate).context("the certificate's files")
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::super::tests::node;

    #[tokio::test]
    async fn certificate_is_kept_for_half_of_its_life() {
        let run_dir = tempfile::tempdir().unwrap();
        let node = node(run_dir.path());
        let directory = node.files("abc").directory.join("certificate");
        std::fs::create_dir_all(&directory).unwrap();
        assert!(node.needs_certificate("abc"), "there is none");
        for (from, to, is_needed) in [(2000, 4000, false), (1980, 2040, true), (1980, 2000, true)] {
            let mut params = CertificateParams::default();
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
            let chain = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
            std::fs::write(directory.join("cert-chain.pem"), chain).unwrap();
            assert_eq!(node.needs_certificate("abc"), is_needed, "{from} to {to}");
        }
    }
}
