//! Events about objects, which `kubectl describe` shows.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

/// Limits the text of an event, in bytes (`NoteLengthLimit` in Kubernetes' validation).
const NOTE_LENGTH_LIMIT: usize = 1024;

/// Says what an event reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventNote {
    /// The reason of the event, in one word.
    pub reason: &'static str,
    /// True if something does not work.
    pub is_warning: bool,
    /// What could not be done, and what to do about it.
    pub text: String,
}

impl EventNote {
    /// Returns a note of type `Warning`.
    #[must_use]
    pub fn warning(reason: &'static str, text: String) -> Self {
        Self { reason, is_warning: true, text }
    }

    /// Returns a note of type `Normal`.
    #[must_use]
    pub fn normal(reason: &'static str, text: String) -> Self {
        Self { reason, is_warning: false, text }
    }
}

/// Creates an event about an object.
///
/// # Errors
/// If the API server does not record it.
pub async fn publish(
    client: &Client,
    reporter: &Reporter,
    action: &str,
    note: EventNote,
    regarding: &ObjectReference,
) -> kube::Result<()> {
    let EventNote { reason, is_warning, mut text } = note;
    text.truncate(text.floor_char_boundary(NOTE_LENGTH_LIMIT));
    let event = Event {
        type_: if is_warning { EventType::Warning } else { EventType::Normal },
        reason: reason.to_owned(),
        note: Some(text),
        action: action.to_owned(),
        secondary: None,
    };
    // A reused recorder counts a later event of the same reason as a repetition, and keeps the first text.
    Recorder::new(client.clone(), reporter.clone()).publish(&event, regarding).await
}
