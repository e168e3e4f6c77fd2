//! Events about pods, which `kubectl describe pod` shows.

use std::convert::Infallible;

use cni::protocol::Sandbox;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use crate::sandbox::Notice;

/// Limits the notices that wait for the API server. Those beyond are in the log only.
const QUEUE_LIMIT: usize = 100;
/// Limits the text of an event, in bytes (`NoteLengthLimit` in Kubernetes' validation).
const NOTE_LENGTH_LIMIT: usize = 1024;

/// Takes notices to be published.
#[derive(Debug, Clone)]
pub struct PodEvents(mpsc::Sender<(ObjectReference, Notice)>);

/// Holds the notices that are to be published.
pub type Notices = mpsc::Receiver<(ObjectReference, Notice)>;

impl PodEvents {
    /// Returns both ends of the queue.
    #[must_use]
    pub fn new() -> (Self, Notices) {
        let (sender, notices) = mpsc::channel(QUEUE_LIMIT);
        (Self(sender), notices)
    }

    /// Has a notice published about a sandbox' pod.
    pub fn tell(&self, sandbox: &Sandbox, notice: Notice) {
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(sandbox.name.clone()),
            namespace: Some(sandbox.namespace.clone()),
            uid: Some(sandbox.uid.clone()),
            ..ObjectReference::default()
        };
        let _ = self.0.try_send((pod, notice));
    }
}

/// Publishes notices, one after the other.
pub async fn publish(client: &Client, mut notices: Notices) -> Infallible {
    let reporter = Reporter { controller: "istio-aux.io/node".to_owned(), instance: None };
    while let Some((pod, mut notice)) = notices.recv().await {
        notice.text.truncate(notice.text.floor_char_boundary(NOTE_LENGTH_LIMIT));
        let event = Event {
            type_: if notice.is_warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.to_owned(),
            note: Some(notice.text),
            action: "Proxy".to_owned(),
            secondary: None,
        };
        // A reused recorder would patch an earlier event, which keeps the first text.
        if let Err(error) = Recorder::new(client.clone(), reporter.clone()).publish(&event, &pod).await {
            tracing::warn!(pod = ?pod.name, reason = event.reason, %error, "an event was not recorded");
        }
    }
    std::future::pending().await
}
