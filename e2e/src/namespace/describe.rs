//! The state of a scenario's namespace in words, for the message of a failure.

use contract::names::SHIM_CONTAINER;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};

use super::Namespace;
use crate::PodView;

/// The lines of a container's log that a failure prints.
const LOG_LINES: i64 = 40;

impl Namespace {
    /// Returns the namespace's pods and the ends of their containers' logs.
    pub async fn describe(&self) -> String {
        let pods = match self.pods().list(&ListParams::default()).await {
            Ok(list) => list.items,
            Err(error) => return format!("namespace {}: {error}", self.name),
        };
        let mut text = format!("namespace {} has {} pods", self.name, pods.len());
        for pod in &pods {
            text = format!("{text}\n  {}", self.describe_pod(pod).await);
        }
        text
    }

    /// Returns the state of a pod's containers in a line, and the ends of their logs. The log of a shim that was restarted is
    /// that of its last two runs.
    pub async fn describe_pod(&self, pod: &Pod) -> String {
        let view = PodView(pod);
        let mut text = view.in_a_line();
        for container in view.container_names() {
            let was_restarted = container == SHIM_CONTAINER && view.restarts(container) > Some(0);
            let runs: &[bool] = if was_restarted { &[true, false] } else { &[false] };
            for &previous in runs {
                let parameters = LogParams {
                    container: Some(container.to_owned()),
                    previous,
                    tail_lines: Some(LOG_LINES),
                    ..LogParams::default()
                };
                let log = self.pods().logs(&pod.name_any(), &parameters).await.unwrap_or_default();
                text.extend(log.lines().map(|line| format!("\n    {container}: {line}")));
            }
        }
        text
    }
}
