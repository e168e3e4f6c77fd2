//! The certificates of the node's service accounts. Pods of an account share one: a start whose account is known asks istiod for none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as AsyncMutex;

use crate::certificate::{WorkloadCertificate, renewal_due_in};
use crate::error::{Context, Result};

/// Limits the certificates that are kept. Beyond it those that nobody asks for at the moment are forgotten.
const LIMIT: usize = 1_000;

/// Keeps the last certificate of each SPIFFE identity, and the mesh's trust domain, in memory only.
#[derive(Default)]
pub struct Identities {
    certificates: Mutex<HashMap<String, Slot>>,
    trust_domain: AsyncMutex<Option<String>>,
}

type Slot = Arc<AsyncMutex<Option<Issued>>>;

struct Issued {
    certificate: WorkloadCertificate,
    /// The mesh's root when it was requested.
    root: Vec<u8>,
}

impl Issued {
    fn is_due(&self) -> bool {
        renewal_due_in(self.certificate.chain.as_bytes()).is_zero()
    }
}

impl Identities {
    /// Returns the identity's certificate. Awaits `issue` if there is none, half of its life is over, or the root has changed. Other
    /// callers for the same identity wait meanwhile.
    pub async fn certificate(
        &self,
        identity: &str,
        root: &[u8],
        issue: impl Future<Output = Result<WorkloadCertificate>>,
    ) -> Result<WorkloadCertificate> {
        let slot = self.slot(identity, root);
        let mut issued = slot.lock().await;
        if let Some(issued) = issued.as_ref().filter(|issued| issued.root == root && !issued.is_due()) {
            return Ok(issued.certificate.clone());
        }
        let certificate = issue.await?;
        *issued = Some(Issued { certificate: certificate.clone(), root: root.to_owned() });
        Ok(certificate)
    }

    /// Fails unless a pod's trust domain is the mesh's. Awaits `ask` where that is not known, or was another one.
    pub async fn check_trust_domain(&self, of_pod: &str, ask: impl Future<Output = Result<String>>) -> Result<()> {
        let mut known = self.trust_domain.lock().await;
        if known.as_deref() != Some(of_pod) {
            *known = Some(ask.await?);
        }
        let known = known.as_deref().unwrap_or_default();
        let is_known = known == of_pod;
        is_known
            .then_some(())
            .context(format_args!("the pod's trust domain would be {of_pod:?}, and the mesh's is {known:?}"))
    }

    /// Forgets the certificates, with their keys, of which half of their life is over.
    pub fn forget_due(&self) {
        retain(&mut self.slots(), |issued| !issued.is_due());
    }

    /// Returns where the identity's certificate is kept, and forgets those of another root.
    fn slot(&self, identity: &str, root: &[u8]) -> Slot {
        let mut slots = self.slots();
        retain(&mut slots, |issued| issued.root == root);
        if slots.len() >= LIMIT && !slots.contains_key(identity) {
            retain(&mut slots, |_| false);
        }
        Arc::clone(slots.entry(identity.to_owned()).or_default())
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.certificates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the certificates that are wanted, and those in use elsewhere, such as one that is being issued.
fn retain(slots: &mut HashMap<String, Slot>, is_wanted: impl Fn(&Issued) -> bool) {
    let is_kept = |slot: &Slot| slot.try_lock().is_ok_and(|slot| slot.as_ref().is_some_and(&is_wanted));
    slots.retain(|_, slot| Arc::strong_count(slot) > 1 || is_kept(slot));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use tokio::task::JoinSet;

    use super::*;
    use crate::error::Error;

    fn issued(from: i32, to: i32) -> WorkloadCertificate {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let chain = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        WorkloadCertificate { chain, root: String::new(), key: String::new() }
    }

    #[tokio::test]
    async fn pods_of_an_account_share_its_certificate() {
        let (identities, count) = (Arc::new(Identities::default()), Arc::new(AtomicUsize::new(0)));
        let want = |identity: usize, root: &'static [u8], certificate: &WorkloadCertificate| {
            let (identities, count, certificate) = (Arc::clone(&identities), Arc::clone(&count), certificate.clone());
            async move {
                let issue = async {
                    count.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Ok(certificate)
                };
                identities.certificate(&identity.to_string(), root, issue).await.unwrap().chain
            }
        };
        let (fresh, due) = (issued(2000, 4000), issued(1980, 2040));
        let pods: JoinSet<_> = (0..1_000).map(|pod| want(pod % 10, b"one", &fresh)).collect();
        assert!(pods.join_all().await.iter().all(|chain| *chain == fresh.chain));
        assert_eq!(count.load(Ordering::Relaxed), 10, "1,000 pods of 10 accounts");
        want(0, b"other", &fresh).await;
        assert_eq!(count.load(Ordering::Relaxed), 11, "the root has changed");
        want(10, b"other", &due).await;
        want(10, b"other", &due).await;
        assert_eq!(count.load(Ordering::Relaxed), 13, "half of its life is over");
        assert_eq!(identities.slots().len(), 2, "what serves is kept, and the last");
    }

    #[tokio::test]
    async fn key_is_forgotten_after_half_of_its_certificates_life() {
        let identities = Identities::default();
        for (identity, certificate) in [("fresh", issued(2000, 4000)), ("due", issued(1980, 2040))] {
            identities.certificate(identity, b"", async { Ok(certificate) }).await.unwrap();
        }
        assert!(identities.certificate("failed", b"", async { Err(Error::new("no")) }).await.is_err());
        let requested = identities.slot("requested", b"");
        identities.forget_due();
        let kept = || identities.slots().keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(kept(), ["fresh", "requested"].map(str::to_owned).into());
        drop(requested);
        identities.forget_due();
        assert_eq!(kept(), ["fresh".to_owned()].into());
    }

    #[tokio::test]
    async fn accounts_beyond_the_limit_fill_no_memory() {
        let (identities, certificate) = (Identities::default(), issued(2000, 4000));
        for number in 0..3 * LIMIT {
            let issue = async { Ok(certificate.clone()) };
            identities.certificate(&number.to_string(), b"", issue).await.unwrap();
            assert!(identities.slots().len() <= LIMIT);
        }
        let again = async { Err(Error::new("it is asked for again")) };
        identities.certificate(&(3 * LIMIT - 1).to_string(), b"", again).await.unwrap();
    }

    #[tokio::test]
    async fn trust_domain_is_the_meshs_and_asked_for_where_it_differs() {
        let (identities, asked) = (Identities::default(), AtomicUsize::new(0));
        let check = async |of_pod: &str, mesh: &str| {
            let ask = async {
                asked.fetch_add(1, Ordering::Relaxed);
                Ok(mesh.to_owned())
            };
            identities.check_trust_domain(of_pod, ask).await.map_err(|error| error.to_string())
        };
        assert_eq!([check("one", "one").await, check("one", "one").await], [Ok(()), Ok(())]);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let refused = r#"the pod's trust domain would be "other", and the mesh's is "one""#;
        assert_eq!(check("other", "one").await, Err(refused.to_owned()));
        assert_eq!([check("two", "two").await, check("two", "two").await], [Ok(()), Ok(())], "the mesh's has changed");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn failure_is_not_kept() {
        let identities = Identities::default();
        let refused = async { Err(Error::new("istiod is unavailable")) };
        assert!(identities.certificate("one", b"", refused).await.is_err());
        assert!(identities.certificate("one", b"", async { Ok(issued(2000, 4000)) }).await.is_ok());
    }
}
