//! A proxy while it serves: waits for its end, and renews its certificate.

use std::convert::Infallible;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use cni::protocol::Sandbox;
use tokio::time::sleep;

use super::{Node, RETRY_DELAY};
use crate::error::{Context, Result};
use crate::pod::{PodFacts, read_pod};

/// Pause after a renewal: it may have failed, or the certificate may be due at once.
const RENEWAL_PAUSE: Duration = Duration::from_secs(30);
/// Interval of checks whether the machine was suspended, the clock was set, or the root has changed.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// After a root change, a node's renewals are spread over these seconds.
const SPREAD_SECONDS: u64 = 60;

impl Node {
    /// Returns when the proxy's process has ended. Waits while containerd is unavailable.
    pub(super) async fn ended(&self, id: &str) {
        // `wait` would not return for a task that was created and not started.
        while !matches!(self.containerd.pid(id).await, Ok(None)) {
            let Err(error) = self.containerd.wait(id).await else { return };
            if error.is_not_found() {
                return;
            }
            tracing::warn!(container = id, %error, "cannot watch a proxy");
            sleep(RETRY_DELAY).await;
        }
    }

    /// Renews the certificate at half of its life, and when the mesh's root has changed, for as long as it is polled.
    pub(super) async fn keep_fresh(&self, sandbox: &Sandbox) -> Infallible {
        loop {
            let due_in = self.files(&sandbox.id).renewal_due_in();
            match Step::of(due_in, self.has_new_root(&sandbox.id), &sandbox.id) {
                Step::CheckIn(delay) => {
                    sleep(delay).await;
                    continue;
                }
                Step::RenewIn(delay) => sleep(delay).await,
            }
            let renewed = async {
                let _turn = self.renewals.acquire().await?;
                let pod = read_pod(&self.client, sandbox).await?;
                let rendered = self.rendered(sandbox, &pod).await?;
                self.renew(sandbox, &pod, rendered.trust_domain()).await
            };
            if let Err(error) = renewed.await {
                tracing::warn!(sandbox = sandbox.id, %error, "could not renew a certificate");
            }
            sleep(RENEWAL_PAUSE).await;
        }
    }

    /// Returns true if there is no certificate, half of its life is over, or the mesh's root has changed since.
    pub(super) fn needs_certificate(&self, id: &str) -> bool {
        self.files(id).renewal_due_in().is_zero() || self.has_new_root(id)
    }

    /// Returns true if the mesh's root is not the one with which the certificate was requested.
    fn has_new_root(&self, id: &str) -> bool {
        fs::read(&self.settings.ca.root).is_ok_and(|root| fs::read(self.requested_root(id)).ok() != Some(root))
    }

    /// Returns the file that records the root at the last request. istiod may return another one with the certificate.
    fn requested_root(&self, id: &str) -> PathBuf {
        self.files(id).directory.join("requested-root.pem")
    }

    pub(super) async fn renew(&self, sandbox: &Sandbox, pod: &PodFacts, trust_domain: &str) -> Result<()> {
        let mesh = self.settings.injector.trust_domain(&self.settings.ca.root);
        self.identities.check_trust_domain(trust_domain, mesh).await?;
        let identity = format!("spiffe://{trust_domain}/ns/{}/sa/{}", sandbox.namespace, pod.service_account);
        let root = fs::read(&self.settings.ca.root).context(self.settings.ca.root.display())?;
        let issue = self.settings.ca.issue(&identity);
        let certificate = self.identities.certificate(&identity, &root, issue).await?;
        let written = self.files(&sandbox.id).write_certificate(&certificate);
        written.and_then(|()| fs::write(self.requested_root(&sandbox.id), root)).context("the certificate's files")
    }
}

/// Is what is done next about a certificate.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Check the clock and the root again.
    CheckIn(Duration),
    /// Renew it.
    RenewIn(Duration),
}

impl Step {
    fn of(due_in: Duration, has_new_root: bool, sandbox: &str) -> Self {
        if due_in.is_zero() {
            Self::RenewIn(due_in)
        } else if has_new_root {
            let mut hasher = DefaultHasher::new();
            sandbox.hash(&mut hasher);
            Self::RenewIn(Duration::from_secs(hasher.finish() % SPREAD_SECONDS))
        } else {
            Self::CheckIn(due_in.min(CHECK_INTERVAL))
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::super::tests::node;
    use super::*;

    #[test]
    fn due_certificate_is_renewed_within_a_minute() {
        let seconds = Duration::from_secs;
        for (due_in, expected) in [
            // A clock that jumps is seen after a minute.
            (43_200, Step::CheckIn(seconds(60))),
            (61, Step::CheckIn(seconds(60))),
            (5, Step::CheckIn(seconds(5))),
            (0, Step::RenewIn(seconds(0))),
        ] {
            assert_eq!(Step::of(seconds(due_in), false, "abc"), expected, "{due_in}");
        }
    }

    #[test]
    fn changed_root_renews_certificates_spread_over_a_minute() {
        let steps = (0..1_000).map(|number| Step::of(Duration::from_hours(12), true, &number.to_string()));
        let mut delays: Vec<_> = steps
            .map(|step| match step {
                Step::RenewIn(delay) => delay.as_secs(),
                Step::CheckIn(_) => panic!("the root has changed"),
            })
            .collect();
        delays.sort_unstable();
        delays.dedup();
        assert!(delays.len() > 50 && delays.last() < Some(&60), "{delays:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_wait_for_their_turn() {
        let run_dir = tempfile::tempdir().unwrap();
        let (client, requests) = api::fake::client([]);
        requests.never_answer(usize::MAX);
        let node = Node { client, ..node(run_dir.path()) };
        let sandboxes =
            ["a", "b", "c"].map(|id| Sandbox { id: id.to_owned(), name: id.to_owned(), ..Sandbox::default() });
        let renewals = futures::future::join_all(sandboxes.iter().map(|sandbox| node.keep_fresh(sandbox)));
        tokio::select! {
            biased;
            _ = renewals => {}
            () = sleep(Duration::from_mins(1)) => {}
        }
        assert_eq!(requests.all().len(), 1);
    }

    #[tokio::test]
    async fn root_is_new_until_it_is_recorded() {
        let run_dir = tempfile::tempdir().unwrap();
        let node = node(run_dir.path());
        fs::create_dir_all(&node.files("abc").directory).unwrap();
        assert!(!node.has_new_root("abc"), "a root that cannot be read");
        for root in ["one", "other"] {
            fs::write(&node.settings.ca.root, root).unwrap();
            assert!(node.has_new_root("abc"), "{root}");
            fs::write(node.requested_root("abc"), root).unwrap();
            assert!(!node.has_new_root("abc"), "{root}");
        }
    }

    #[tokio::test]
    async fn certificate_is_kept_for_half_of_its_life() {
        let run_dir = tempfile::tempdir().unwrap();
        let node = node(run_dir.path());
        let directory = node.files("abc").directory.join("certificate");
        fs::create_dir_all(&directory).unwrap();
        assert!(node.needs_certificate("abc"), "there is none");
        for (from, to, is_needed) in [(2000, 4000, false), (1980, 2040, true), (1980, 2000, true)] {
            let mut params = CertificateParams::default();
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
            let chain = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
            fs::write(directory.join("cert-chain.pem"), chain).unwrap();
            assert_eq!(node.needs_certificate("abc"), is_needed, "{from} to {to}");
        }
    }
}
