//! Events about pods, which `kubectl describe pod` shows.

use std::convert::Infallible;

use api::events::EventNote;
use cni::protocol::Sandbox;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::Reporter;
use tokio::sync::mpsc;

/// Limits the notes that wait for the API server. Those beyond are in the log only.
const QUEUE_LIMIT: usize = 100;

/// Takes notes to be published.
#[derive(Debug, Clone)]
pub struct PodEvents(mpsc::Sender<(ObjectReference, EventNote)>);

/// Holds the notes that are to be published.
pub type Notes = mpsc::Receiver<(ObjectReference, EventNote)>;

impl PodEvents {
    /// Returns both ends of the queue.
    #[must_use]
    pub fn new() -> (Self, Notes) {
        let (sender, notes) = mpsc::channel(QUEUE_LIMIT);
        (Self(sender), notes)
    }

    /// Has a note published about a sandbox' pod.
    pub fn send(&self, sandbox: &Sandbox, note: EventNote) {
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(sandbox.name.clone()),
            namespace: Some(sandbox.namespace.clone()),
            uid: Some(sandbox.uid.clone()),
            ..ObjectReference::default()
        };
        let _ = self.0.try_send((pod, note));
    }
}

/// Publishes notes, one after the other.
pub async fn publish(client: &Client, mut notes: Notes) -> Infallible {
    let reporter = Reporter { controller: "istio-aux.io/node".to_owned(), instance: None };
    while let Some((pod, note)) = notes.recv().await {
        let reason = note.reason;
        if let Err(error) = api::events::publish(client, &reporter, "Proxy", note, &pod).await {
            tracing::warn!(pod = ?pod.name, reason, %error, "an event was not recorded");
        }
    }
    std::future::pending().await
}
