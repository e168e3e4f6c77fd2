//! Keeps a certificate of our own: does what [`plan`] says, step by step, as one of several replicas that do the same.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::cluster::{Cluster, Error, Read};
use super::pair::{Pair, is_for, issue, now};
use super::plan::{self, Held, Settling, Step, Trusted};
use crate::causes::with_causes;

/// Pause after the cluster did not do what it was asked.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// How long one look may take, with what is written.
const LOOK_WITHIN: Duration = Duration::from_secs(30);
/// Writes that may follow one another at once: a renewal takes fewer. More are a quarrel with somebody else who writes the same.
const WRITES_AT_ONCE: u32 = 5;
/// Pause between the writes of a quarrel.
const QUARREL_AFTER: Duration = Duration::from_secs(10);

/// Who serves a certificate.
pub(crate) trait Server {
    /// Serves this from now on, where it can be; returns whether it is.
    fn serve(&self, pair: &Pair) -> bool;
    /// The certificate could not be kept; what is served stays.
    fn failed(&self);
}

/// What keeps the certificate.
pub(crate) struct Keeper<C> {
    cluster: C,
    /// The DNS name that the API server calls.
    name: String,
    /// How long a certificate is to be valid.
    valid_for: Duration,
    served: Option<Pair>,
    began: Instant,
    settling: Settling,
}

impl<C: Cluster> Keeper<C> {
    pub(crate) fn new(cluster: C, name: &str, valid_for: Duration) -> Self {
        Self {
            cluster,
            name: name.to_owned(),
            valid_for,
            served: None,
            began: Instant::now(),
            settling: Settling::default(),
        }
    }

    /// Keeps it for ever.
    pub(crate) async fn run(mut self, server: impl Server) {
        let (mut said, mut writes) = (None, 0);
        loop {
            let looked = timeout(LOOK_WITHIN, self.look(&server)).await.unwrap_or(Err(Error::Late(LOOK_WITHIN)));
            writes = if matches!(looked, Ok(Step::Keep)) { 0 } else { writes + 1 };
            let pause = match looked {
                Ok(Step::Keep) => {
                    said = None;
                    plan::look_every(self.valid_for)
                }
                Ok(_) | Err(Error::Conflict) if writes <= WRITES_AT_ONCE => Duration::ZERO,
                Ok(_) | Err(Error::Conflict) => {
                    tracing::warn!(
                        "somebody else writes the certificate, or whom the configuration trusts, again and again"
                    );
                    QUARREL_AFTER
                }
                Err(error) => {
                    let error = with_causes(&error);
                    if said.as_ref() != Some(&error) {
                        tracing::warn!(error, "the certificate cannot be kept; trying again");
                        server.failed();
                    }
                    said = Some(error);
                    AGAIN_AFTER
                }
            };
            sleep(pause).await;
        }
    }

    /// Reads what there is, serves it, and takes the next step. Who is trusted is read first: a write to the configuration
    /// must not come from somebody who does not know of a certificate that it trusts already.
    async fn look(&mut self, server: &impl Server) -> Result<Step, Error> {
        let trusted = self.cluster.trusted().await?;
        let held = self.held().await?;
        self.serve(&held.value, server);
        let trusted_for = self.settling.see(&held.value, &trusted.value, now(), self.began.elapsed());
        let before = self.served.as_ref();
        let step = plan::step(&held.value, before, &trusted.value, now(), self.valid_for, trusted_for);
        self.take(&step, &trusted, &held).await?;
        Ok(step)
    }

    async fn held(&self) -> Result<Read<Held>, Error> {
        let mut held = self.cluster.held().await?;
        // A certificate for another name, or without its key, is as good as none.
        let is_good = |pair: &Pair| is_for(&pair.cert, &self.name) && pair.is_whole();
        held.value.current = held.value.current.filter(is_good);
        held.value.next = held.value.next.filter(is_good);
        Ok(held)
    }

    fn serve(&mut self, held: &Held, server: &impl Server) {
        let Some(pair) = &held.current else { return };
        if self.served.as_ref() != Some(pair) && server.serve(pair) {
            self.served = Some(pair.clone());
        }
    }

    async fn take(&self, step: &Step, trusted: &Read<Trusted>, held: &Read<Held>) -> Result<(), Error> {
        let before = held.value.clone();
        let (after, done) = match step {
            Step::Keep => return Ok(()),
            Step::Trust(bundle) => {
                self.cluster.trust(bundle, trusted).await?;
                tracing::info!("the webhook configuration trusts the certificate's authority");
                return Ok(());
            }
            Step::Restore(pair) => {
                tracing::warn!("the Secret has lost the certificate that is served");
                let after = Held { current: Some(pair.clone()), next: None, ..before };
                (after, "the certificate that is served is kept again")
            }
            Step::IssueCurrent => (Held { current: Some(self.issue()), ..Held::default() }, "made a certificate"),
            Step::IssueNext => {
                let after = Held { next: Some(self.issue()), ..before };
                (after, "made the next certificate, to be served once its authority is trusted")
            }
            Step::Promote => (plan::promoted(before), "the next certificate is served from now on"),
        };
        self.cluster.hold(&after, held).await?;
        tracing::info!("{done}");
        Ok(())
    }

    fn issue(&self) -> Pair {
        // The name was taken from Kubernetes' own, and the rest is ours.
        issue(&self.name, now(), self.valid_for).expect("a certificate can be made for a Service's name")
    }
}
