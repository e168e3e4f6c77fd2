//! The Secret that keeps the certificates, and the webhook configuration that trusts them. Both are written only as they
//! were read: whoever else has written in between makes the write a [`Error::Conflict`].

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::pair::Pair;
use super::plan::{Held, Trusted};

/// An object as it was read, with the version that a write must still find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read<T> {
    pub(crate) version: String,
    pub(crate) value: T,
}

/// Why the cluster did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Somebody else has written since it was read.
    #[error("somebody else has written meanwhile")]
    Conflict,
    /// The Secret is not there.
    #[error("there is no Secret {0}: apply the manifests again, which bring it, empty")]
    NoSecret(String),
    /// The API server does not answer.
    #[error("the API server did not answer within {0:?}")]
    Late(Duration),
    /// Anything else.
    #[error("cannot {what}")]
    Other {
        /// What was tried.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Where certificates are kept, and who trusts them.
pub(crate) trait Cluster {
    /// What the configuration trusts; the version is empty where there is none.
    fn trusted(&self) -> impl Future<Output = Result<Read<Trusted>, Error>> + Send;
    /// What the Secret holds.
    fn held(&self) -> impl Future<Output = Result<Read<Held>, Error>> + Send;
    /// Has every webhook of the configuration trust a bundle.
    fn trust(&self, bundle: &str, read: &Read<Trusted>) -> impl Future<Output = Result<(), Error>> + Send;
    /// Keeps certificates in the Secret.
    fn hold(&self, held: &Held, read: &Read<Held>) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The cluster that an API server tells of.
pub(crate) struct Kubernetes {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    namespace: String,
    secret: String,
    configuration: String,
}

impl Kubernetes {
    /// The Secret and the configuration of these names.
    pub(crate) fn new(client: &Client, namespace: &str, secret: &str, configuration: &str) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client.clone()),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            configuration: configuration.to_owned(),
        }
    }

    fn other(verb: &str, kind: &str, name: &str, source: kube::Error) -> Error {
        Error::Other { what: format!("{verb} the {kind} {name}"), source: Box::new(source) }
    }

    fn secret_name(&self) -> String {
        format!("{}/{}", self.namespace, self.secret)
    }
}

impl Cluster for Kubernetes {
    async fn trusted(&self) -> Result<Read<Trusted>, Error> {
        let read = self.configurations.get_opt(&self.configuration).await;
        let read = read.map_err(|error| Self::other("read", "webhook configuration", &self.configuration, error))?;
        Ok(read.map_or(Read { version: String::new(), value: None }, |configuration| Read {
            version: configuration.resource_version().unwrap_or_default(),
            value: Some(bundles(&configuration)),
        }))
    }

    async fn held(&self) -> Result<Read<Held>, Error> {
        let read = self.secrets.get_opt(&self.secret).await;
        let read = read.map_err(|error| Self::other("read", "Secret", &self.secret_name(), error))?;
        let secret = read.ok_or_else(|| Error::NoSecret(self.secret_name()))?;
        let version = secret.resource_version().unwrap_or_default();
        Ok(Read { version, value: held_in(&secret.data.unwrap_or_default()) })
    }

    async fn trust(&self, bundle: &str, read: &Read<Trusted>) -> Result<(), Error> {
        let name = &self.configuration;
        let bundle = ByteString(bundle.as_bytes().to_vec());
        // Merged by the webhooks' names: whatever else is in them stays.
        let webhooks = read
            .value
            .iter()
            .flatten()
            .map(|(webhook, _)| json!({"name": webhook, "clientConfig": {"caBundle": bundle}}));
        let patch = json!({"metadata": {"resourceVersion": read.version}, "webhooks": webhooks.collect::<Vec<_>>()});
        let patched = self.configurations.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        written(patched, "webhook configuration", name)
    }

    async fn hold(&self, held: &Held, read: &Read<Held>) -> Result<(), Error> {
        let patch = json!({"metadata": {"resourceVersion": read.version}, "data": data_of(held)});
        let patched = self.secrets.patch(&self.secret, &PatchParams::default(), &Patch::Merge(patch)).await;
        written(patched, "Secret", &self.secret_name())
    }
}

fn written<T>(result: kube::Result<T>, kind: &str, name: &str) -> Result<(), Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Conflict),
        Err(error) => Err(Kubernetes::other("write", kind, name, error)),
    }
}

/// The bundle of each webhook, by their names.
fn bundles(configuration: &MutatingWebhookConfiguration) -> BTreeMap<String, String> {
    let bundle = |bytes: Option<&ByteString>| {
        bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
    };
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks.map(|webhook| (webhook.name.clone(), bundle(webhook.client_config.ca_bundle.as_ref()))).collect()
}

const CURRENT: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const NEXT: [&str; 3] = ["next-ca.crt", "next.crt", "next.key"];
const PREVIOUS_CA: &str = "previous-ca.crt";

fn held_in(data: &BTreeMap<String, ByteString>) -> Held {
    let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    let pair = |[ca, cert, key]: [&str; 3]| Some(Pair { ca: text(ca)?, cert: text(cert)?, key: text(key)? });
    Held { current: pair(CURRENT), next: pair(NEXT), previous_ca: text(PREVIOUS_CA) }
}

/// The Secret's data; null takes away what was there.
fn data_of(held: &Held) -> Value {
    let mut data = serde_json::Map::new();
    let mut set = |key: &str, text: Option<&String>| {
        let value = text.map_or(Value::Null, |text| json!(ByteString(text.as_bytes().to_vec())));
        data.insert(key.to_owned(), value);
    };
    for (keys, pair) in [(CURRENT, &held.current), (NEXT, &held.next)] {
        let pair = pair.as_ref();
        let texts = [pair.map(|pair| &pair.ca), pair.map(|pair| &pair.cert), pair.map(|pair| &pair.key)];
        keys.into_iter().zip(texts).for_each(|(key, text)| set(key, text));
    }
    set(PREVIOUS_CA, held.previous_ca.as_ref());
    Value::Object(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_read_as_it_was_written() {
        let pair = |n: &str| Pair { ca: format!("ca{n}"), cert: format!("cert{n}"), key: format!("key{n}") };
        let cases = [
            Held::default(),
            Held { current: Some(pair("1")), next: None, previous_ca: None },
            Held { current: Some(pair("1")), next: Some(pair("2")), previous_ca: Some("ca0".to_owned()) },
        ];
        for held in cases {
            let mut secret = json!({"data": data_of(&held)});
            // The API server takes what is null away.
            secret["data"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
            let secret: Secret = serde_json::from_value(secret).unwrap();
            assert_eq!(held_in(&secret.data.unwrap()), held);
        }
    }
}
