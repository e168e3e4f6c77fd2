//! Keeps a self-signed certificate valid and trusted. Each replica runs one rotator, which carries out the actions of [`plan`].

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::select;
use tokio::time::{sleep, timeout};

use super::plan::{self, Action, Configuration, StoredCerts, TrustTimer};
use super::serving_cert::{ServingCert, is_for, issue, now};
use super::store::{CertificateStore, Error};
use api::describe_error;

/// Pause after an error.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Limits the time of one reconciliation, with its write.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Limits the writes between two pauses in which nothing changed. A renewal takes fewer; more mean that another client undoes them.
const MAX_CONSECUTIVE_WRITES: u32 = 5;
/// Limits how often changes that others make wake it.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after too many consecutive writes.
const CONFLICT_BACKOFF: Duration = Duration::from_secs(10);

/// Holds one time by two clocks.
pub(crate) struct Moment {
    /// Time in seconds since 1970.
    pub(crate) unix: i64,
    /// Time since a fixed start. Setting the machine's clock does not change it.
    pub(crate) monotonic: Duration,
}

/// Returns the machine's clock.
pub(crate) fn system_clock() -> impl Fn() -> Moment {
    let started = Instant::now();
    move || Moment { unix: now(), monotonic: started.elapsed() }
}

/// Renews a certificate, and keeps the CA bundles of the webhook configurations in step with it.
pub(crate) struct CertRotator<S, C> {
    store: S,
    clock: C,
    /// DNS name that the API server calls.
    name: String,
    /// Validity of a new certificate.
    valid_for: Duration,
    served: Option<ServingCert>,
    /// The configurations as they were last read.
    configurations: Vec<Configuration>,
    trust_timer: TrustTimer,
}

impl<S: CertificateStore + Clone, C: Fn() -> Moment> CertRotator<S, C> {
    pub(crate) fn new(store: S, clock: C, name: &str, valid_for: Duration) -> Self {
        let (served, configurations, trust_timer) = (None, Vec::new(), TrustTimer::default());
        Self { store, clock, name: name.to_owned(), valid_for, served, configurations, trust_timer }
    }

    /// Reconciles for ever. `serve` serves a certificate from now on, and returns false if it cannot be served.
    pub(crate) async fn run(mut self, serve: impl Fn(&ServingCert) -> bool) -> Infallible {
        let (mut last_error, mut writes, mut changed) = (None, 0, None);
        loop {
            let reconciled = timeout(RECONCILE_TIMEOUT, self.reconcile(&serve)).await;
            let reconciled = reconciled.unwrap_or(Err(Error::Timeout(RECONCILE_TIMEOUT)));
            let is_idle = matches!(reconciled, Ok(Action::Idle));
            writes += u32::from(!is_idle);
            let pause = match reconciled {
                Ok(Action::Idle) => {
                    last_error = None;
                    plan::reconcile_interval(self.valid_for)
                }
                Ok(_) | Err(Error::Conflict) if writes <= MAX_CONSECUTIVE_WRITES => Duration::ZERO,
                Ok(_) | Err(Error::Conflict) => {
                    tracing::warn!("another client keeps changing the Secret or the CA bundle of the certificate");
                    CONFLICT_BACKOFF
                }
                Err(error) => {
                    writes = 0;
                    let error = describe_error(&error);
                    if last_error.as_ref() != Some(&error) {
                        tracing::warn!(error, "the certificate cannot be kept valid and trusted; retrying");
                    }
                    last_error = Some(error);
                    RETRY_DELAY
                }
            };
            if !is_idle {
                changed = None;
                sleep(pause).await;
                continue;
            }
            // A webhook that is new in a configuration has no bundle, and the API server does not trust it until then.
            let until_changed = changed.get_or_insert_with(|| Box::pin(self.until_changed()));
            select! {
                biased;
                () = sleep(pause) => writes = 0,
                () = until_changed => changed = None,
            }
        }
    }

    /// Waits until a configuration has changed since it was last read.
    fn until_changed(&self) -> impl Future<Output = ()> + use<S, C> {
        let (store, read) = (self.store.clone(), self.configurations.clone());
        async move {
            sleep(WAKE_INTERVAL).await;
            store.changed(&read).await;
        }
    }

    /// Reads all objects, serves the current certificate, and takes the next action. The CA bundles are read before the
    /// Secret, so a patch either keeps every CA that they hold, or it fails with a conflict.
    async fn reconcile(&mut self, serve: &impl Fn(&ServingCert) -> bool) -> Result<Action, Error> {
        self.configurations = self.store.read_configurations().await?;
        let (stored, version) = self.read_secret().await?;
        if let Some(cert) = &stored.current
            && self.served.as_ref() != Some(cert)
            && serve(cert)
        {
            self.served = Some(cert.clone());
        }
        let configurations = self.configurations.as_slice();
        let Moment { unix: now, monotonic } = (self.clock)();
        let trusted_for = self.trust_timer.observe(&stored, configurations, now, monotonic);
        let served = self.served.as_ref();
        let action = plan::next_action(&stored, served, configurations, now, self.valid_for, trusted_for);
        self.apply(&action, stored, &version, now).await?;
        Ok(action)
    }

    /// Reads the Secret. A certificate for another name or without its key counts as missing.
    async fn read_secret(&self) -> Result<(StoredCerts, String), Error> {
        let (mut stored, version) = self.store.read_secret().await?;
        let is_good = |cert: &ServingCert| is_for(&cert.cert, &self.name) && cert.key_matches();
        stored.current = stored.current.filter(is_good);
        stored.next = stored.next.filter(is_good);
        Ok((stored, version))
    }

    async fn apply(&self, action: &Action, stored: StoredCerts, version: &str, now: i64) -> Result<(), Error> {
        let done = match action {
            Action::Idle => return Ok(()),
            Action::PatchCaBundle(bundle) => {
                for configuration in self.configurations.iter().filter(|configuration| !configuration.trusts(bundle)) {
                    self.store.write_ca_bundle(bundle, configuration).await?;
                    tracing::info!(configuration = configuration.name, "updated the CA bundle");
                }
                return Ok(());
            }
            Action::RestoreSecret(_) => "restored the Secret, which had lost the certificate that is served",
            Action::IssueCurrent => "issued a certificate",
            Action::IssueNext => "issued the next certificate; it is served once its CA is trusted",
            Action::Promote => "the next certificate is served from now on",
            Action::RetirePreviousCa => "the previous CA is no longer trusted",
        };
        let issue = || {
            issue(&self.name, now, self.valid_for).map_err(|source| Error::Issue { name: self.name.clone(), source })
        };
        let after = plan::after(action, stored, issue)?;
        self.store.write_secret(&after, version).await?;
        tracing::info!("{done}");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
