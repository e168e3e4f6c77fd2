//! Checks a proxy that serves, as the kubelet checks a container by a liveness probe.

use std::pin::pin;
use std::time::{Duration, Instant};

use cni::protocol::Sandbox;
use tokio::time::{sleep, timeout};

use super::Node;
use super::cpu::CpuTimes;
use super::ids::revision_of;
use super::ports::Ports;
use crate::netns::CHECK_TIMEOUT;

/// The kubelet's defaults: `periodSeconds` and `failureThreshold`.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const FAILURE_THRESHOLD: u32 = 3;
/// The time in which a proxy usually responds. Only where it has not are the times of its threads read.
const PROMPT: Duration = Duration::from_millis(100);

impl Node {
    /// Returns once the proxy has failed three checks in a row. A check does not count in which it was not let run: a busy node
    /// gives the proxies of `BestEffort` pods little CPU.
    pub(super) async fn until_stuck(&self, id: &str, sandbox: &Sandbox) {
        let readiness = Ports::of(revision_of(id).unwrap_or_default()).readiness;
        let (mut network, mut failures) = (None, Failures::default());
        loop {
            sleep(CHECK_INTERVAL).await;
            if network.is_none() {
                // If containerd is unavailable, or nothing runs, there is nothing to check.
                network = self.network(id, sandbox).await.unwrap_or_default();
            }
            let Some(network) = &network else { continue };
            let mut check = pin!(network.check(readiness));
            let (check, waited) = if let Ok(check) = timeout(PROMPT, &mut check).await {
                (check, Duration::ZERO)
            } else {
                let (began, before) = (Instant::now(), CpuTimes::of(network.pid()));
                let check = check.await;
                (check, CpuTimes::of(network.pid()).longest_wait_since(&before, began.elapsed()))
            };
            match check {
                Ok(Err(reason)) if waited >= CHECK_TIMEOUT / 2 => {
                    tracing::info!(container = id, %reason, ?waited, "a proxy was not let run, so its check does not count");
                }
                Ok(check) => {
                    if failures.reach_threshold(check.is_ok()) {
                        tracing::warn!(container = id, ?check, "a proxy is ended: its checks fail");
                        return;
                    }
                }
                Err(error) => tracing::warn!(container = id, %error, "could not check a proxy"),
            }
        }
    }

    /// Ends a proxy now, rather than with its restart.
    pub(super) async fn end(&self, id: &str) {
        if let Err(error) = self.containerd.remove(id).await {
            tracing::warn!(container = id, %error, "could not end a proxy");
        }
    }
}

/// Counts the failed checks in a row.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    /// Takes a check's result, and returns true if there are too many failures.
    fn reach_threshold(&mut self, is_live: bool) -> bool {
        self.0 = if is_live { 0 } else { self.0 + 1 };
        self.0 >= FAILURE_THRESHOLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_failure_in_a_row_ends_proxy() {
        for (checks, ended_after) in
            [("----", Some(3)), ("+---", Some(4)), ("--+--+--", None), ("-+---", Some(5)), ("++++", None)]
        {
            let mut failures = Failures::default();
            let ended = checks.chars().position(|check| failures.reach_threshold(check == '+'));
            assert_eq!(ended.map(|index| index + 1), ended_after, "{checks}");
        }
    }
}
