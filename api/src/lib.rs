//! Reads objects of any kind as raw JSON, and describes the API server's errors in one line.

#![forbid(unsafe_code)]

#[cfg(feature = "events")]
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;

use std::error::Error;
use std::time::Duration;

use contract::kind::Kind;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::gvk::GroupVersionKind;
use kube::{Client, Config};
use serde_json::Value;

/// Closes connections without an answer within `timeout`: a lost connection is not always reported.
pub fn limit_answers(config: &mut Config, timeout: Duration) {
    config.read_timeout = Some(timeout);
    // Otherwise the time a connection was idle counts against its next answer.
    config.reset_reader_on_write = true;
}

/// Returns a client that closes connections without an answer within `timeout`.
///
/// # Errors
/// If the configuration cannot be used, as with an unreadable certificate.
pub fn client_within(mut config: Config, timeout: Duration) -> kube::Result<Client> {
    limit_answers(&mut config, timeout);
    Client::try_from(config)
}

/// Returns kube's client for the objects of a kind, in a namespace or in all.
#[must_use]
pub fn objects(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(kind.group, kind.version, kind.name), kind.plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Reads one object; `None` if the object does not exist, or the server does not have the kind.
pub async fn get(client: &Client, kind: Kind, namespace: Option<&str>, name: &str) -> kube::Result<Option<Value>> {
    find(&objects(client, kind, namespace), name).await
}

/// Reads one of these objects; `None` if it does not exist, or the server does not have the kind.
pub async fn find(objects: &Api<DynamicObject>, name: &str) -> kube::Result<Option<Value>> {
    match objects.get(name).await {
        Ok(object) => serde_json::to_value(object).map(Some).map_err(kube::Error::SerdeError),
        // `get_opt` expects a reason. For a kind that it does not have, the server answers 404 in plain text.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Describes an error and its causes in one line. Of an answer of the API server it is the server's own message.
#[must_use]
pub fn describe_error(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let boxed = error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
        let (text, cause) = match error.downcast_ref().or(boxed) {
            Some(kube::Error::Api(status)) => (status.message.clone(), None),
            // Its own message is a prefix and the cause's message.
            Some(kube::Error::Service(cause)) => (cause.to_string(), cause.source()),
            _ => (error.to_string(), error.source()),
        };
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        next = cause;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::fake::{Answer, client};
    use super::*;
    use contract::kind::PODS;

    #[test]
    fn cause_that_the_error_repeats_is_printed_once() {
        let error = kube::Error::SerdeError(serde_json::from_str::<u8>("x").unwrap_err());
        assert_eq!(describe_error(&error), error.to_string());
        assert!(error.source().is_some_and(|cause| error.to_string().contains(&cause.to_string())));
    }

    #[tokio::test]
    async fn missing_object_or_kind_is_none() {
        let (client, _) = client([Answer::not_served("GET /api/v1/namespaces/team/pods/a")]);
        for name in ["a", "b"] {
            assert_eq!(get(&client, PODS, Some("team"), name).await.unwrap(), None, "{name}");
        }
    }
}
