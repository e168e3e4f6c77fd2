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

    pub(super) async fn renew(&self, sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts) -> Result<()> {
        let identity = format!("spiffe://{}/ns/{}/sa/{}", mesh.trust_domain, sandbox.namespace, pod.service_account);
        let certificate = self.settings.ca.issue(&identity).await?;
        self.files(&sandbox.id).write_certificate(&certificate).context("the certificate's files")
    }
}
