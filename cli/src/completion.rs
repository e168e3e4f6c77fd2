//! Waits until a pod has ended.

use std::time::{Duration, Instant};

use anyhow::Result;
use contract::kind::PODS;
use kube::Client;
use serde_json::Value;
use tokio::time::sleep;

use crate::read;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Holds a pod's state when the wait for its end was over.
#[derive(Debug)]
pub(crate) enum PodCompletion {
    /// Has the pod in its final phase.
    Terminated(Value),
    Deleted,
    /// Has the pod, which did not reach its final phase in time.
    TimedOut(Value),
}

/// Waits for a pod's final phase.
pub(crate) async fn wait_for_pod(
    client: &Client,
    namespace: &str,
    name: &str,
    timeout: Duration,
) -> Result<PodCompletion> {
    let began = Instant::now();
    loop {
        let Some(pod) = read::get(client, PODS, Some(namespace), name).await? else {
            return Ok(PodCompletion::Deleted);
        };
        if matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            return Ok(PodCompletion::Terminated(pod));
        }
        if began.elapsed() >= timeout {
            return Ok(PodCompletion::TimedOut(pod));
        }
        sleep(POLL_INTERVAL).await;
    }
}
