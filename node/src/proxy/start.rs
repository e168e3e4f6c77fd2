//! The start of a sandbox' proxy: its files, its container, and its readiness.

use std::time::Duration;

use cni::protocol::Sandbox;
use tokio::time::{Instant, sleep, timeout};

use super::files::record_of;
use super::ids::proxy_id;
use super::ports::Ports;
use super::{Node, RECORD, RETRY_DELAY};
use crate::error::{Context, Error, Result};
use crate::injector::Rendered;
use crate::pod::{PodFacts, read_pod};

/// Limits a start and the wait for its turn together, less than the plugin's wait.
const START_TIMEOUT: Duration = Duration::from_secs(195);
/// Limits the wait for a start's turn: of 200 starts at once on two cores, the last waits 160 s.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_secs(170);
/// Limits a start from its turn on: long enough for a proxy on a busy node.
const READY_TIMEOUT: Duration = Duration::from_secs(80);
/// istiod may see the pod on this node a moment later than the kubelet.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(30);

impl Node {
    /// Limits the time of a start that was requested at `asked`.
    pub(super) async fn in_time(asked: Instant, start: impl Future<Output = Result<()>>) -> Result<()> {
        let limit = READY_TIMEOUT.min(START_TIMEOUT.saturating_sub(asked.elapsed()));
        let too_slow = || Err(Error::new(format_args!("the proxy was not ready after {limit:?}")));
        timeout(limit, start).await.unwrap_or_else(|_| too_slow())
    }

    pub(super) async fn start_until_ready(&self, sandbox: &Sandbox) -> Result<()> {
        let began = Instant::now();
        let served = self.files(&sandbox.id).revision().context(RECORD)?;
        let revision = served.unwrap_or_default();
        // `status` lists a proxy that has ended until its container is removed.
        let pod = read_pod(&self.client, sandbox).await?;
        self.containerd.remove(&proxy_id(&sandbox.id, revision)).await?;
        if served.is_some() {
            // An upgrade may have failed because the proxy ended.
            self.containerd.remove(&proxy_id(&sandbox.id, revision.wrapping_add(1))).await?;
        }
        self.files(&sandbox.id).write_pod(sandbox, &pod).context("the pod's files")?;
        let rendered = self.rendered(sandbox, &pod).await?;
        let create = async {
            self.create_proxy(revision, sandbox, &pod, &rendered).await?;
            // Otherwise the pod's network is as the earlier proxy left it.
            if served.is_none() { self.redirect(revision, sandbox, &rendered).await } else { Ok(()) }
        };
        tokio::try_join!(self.certify(sandbox, &pod, &rendered), create)?;
        let prepared = began.elapsed();
        // The proxy runs after the redirection, which may break older connections (`nf_conntrack_tcp_loose`).
        self.run_until_ready(revision, sandbox).await?;
        if served.is_none() {
            self.files(&sandbox.id).write_revision(revision).context("the sandbox' files")?;
        }
        let ready = began.elapsed();
        tracing::info!(sandbox = sandbox.id, ?prepared, ?ready, "the proxy serves; times since it was asked for");
        Ok(())
    }

    /// Has istiod sign a certificate, unless there is one that is still good, as a restarted proxy has.
    async fn certify(&self, sandbox: &Sandbox, pod: &PodFacts, rendered: &Rendered) -> Result<()> {
        let deadline = Instant::now() + CERTIFICATE_TIMEOUT;
        while self.needs_certificate(&sandbox.id)
            && let Err(error) = self.renew(sandbox, pod, rendered.trust_domain()).await
        {
            if Instant::now() >= deadline {
                return Err(error);
            }
            sleep(RETRY_DELAY).await;
        }
        Ok(())
    }

    /// Returns what istiod's injector gave the proxy that serves; asks again where there is none.
    pub(super) async fn rendered(&self, sandbox: &Sandbox, pod: &PodFacts) -> Result<Rendered> {
        let files = self.files(&sandbox.id);
        if let Some(rendered) = files.rendered().context(RECORD)? {
            return Ok(rendered);
        }
        let rendered = self.render(sandbox, pod).await?;
        record_of(&rendered).and_then(|record| files.write_rendered(&record)).context("the sandbox' files")?;
        Ok(rendered)
    }

    /// Asks istiod's injector, for a proxy that has not served yet.
    pub(super) async fn render(&self, sandbox: &Sandbox, pod: &PodFacts) -> Result<Rendered> {
        self.settings.injector.render(&pod.object, sandbox, &self.settings.ca.root).await
    }

    /// Starts a proxy that was created, and returns when it is ready.
    pub(super) async fn run_until_ready(&self, revision: u32, sandbox: &Sandbox) -> Result<()> {
        let (id, has_ended) = (proxy_id(&sandbox.id, revision), "the proxy ended before it was ready");
        self.containerd.start(&id).await?;
        let ready = async {
            let network = self.network(&id, sandbox).await?.context(has_ended)?;
            network.wait_until_ready(Ports::of(revision).readiness, READY_TIMEOUT).await
        };
        tokio::select! {
            ready = ready => ready,
            () = self.ended(&id) => Err(Error::new(has_ended)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::node;
    use super::*;

    #[tokio::test]
    async fn earlier_proxy_is_removed_once_its_pod_was_read() {
        let run_dir = tempfile::tempdir().unwrap();
        let (client, _) = api::fake::client([]);
        let node = Node { client, ..node(run_dir.path()) };
        let sandbox = Sandbox { id: "abc".to_owned(), name: "job".to_owned(), ..Sandbox::default() };
        let error = node.start_until_ready(&sandbox).await.unwrap_err().to_string();
        assert_eq!(error, "the pod does not exist any more", "containerd, which cannot be reached, was not called");
    }

    #[test]
    fn agent_gives_up_before_the_plugin() {
        let wait = cni::plugin::timeout("ADD");
        assert!(QUEUE_TIMEOUT < START_TIMEOUT && START_TIMEOUT < wait, "the plugin waits {wait:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn start_has_less_time_after_a_long_wait() {
        for (waited, expected) in [(0, 80), (100, 80), (170, 25)] {
            let asked = Instant::now();
            sleep(Duration::from_secs(waited)).await;
            let began = Instant::now();
            let error = Node::in_time(asked, std::future::pending()).await.unwrap_err().to_string();
            assert_eq!(began.elapsed(), Duration::from_secs(expected), "{error}");
        }
    }
}
