//! Reads and writes the Secret that stores the certificates, and the webhook configurations that trust them. Each write carries
//! the resourceVersion that was read, and fails with [`Error::Conflict`] if the object has changed since.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures::future::select_all;
use futures::{StreamExt, pin_mut};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::plan::{Configuration, StoredCerts};
use super::serving_cert::ServingCert;

/// Annotation of the Secret that requests a renewal. Its value is the time of the request.
const RENEWAL_ANNOTATION: &str = "istio-aux.io/renewal-requested";

/// Pause before a configuration is watched again.
const WATCH_DELAY: Duration = Duration::from_secs(10);

/// Reports that the certificates could not be read, issued or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("another client has changed the object since it was read")]
    Conflict,
    #[error("there is no Secret {0}: apply the manifests again, which create it empty")]
    NoSecret(String),
    #[error("the API server did not answer within {0:?}")]
    Timeout(Duration),
    #[error("cannot make a certificate for {name}")]
    Issue { name: String, source: rcgen::Error },
    #[error("cannot {action}")]
    Api { action: String, source: Box<kube::Error> },
}

impl Error {
    fn api(verb: &str, kind: &str, name: &str, source: kube::Error) -> Self {
        Self::Api { action: format!("{verb} the {kind} {name}"), source: Box::new(source) }
    }
}

/// Stores certificates, and the CA bundles of the webhook configurations.
pub(crate) trait CertificateStore {
    /// Reads the configurations that exist.
    fn read_configurations(&self) -> impl Future<Output = Result<Vec<Configuration>, Error>> + Send;
    /// Waits until a configuration has changed since it was read.
    fn changed(&self, read: &[Configuration]) -> impl Future<Output = ()> + Send;
    /// Reads the Secret, and its resourceVersion.
    fn read_secret(&self) -> impl Future<Output = Result<(StoredCerts, String), Error>> + Send;
    /// Writes one bundle to every webhook of a configuration.
    fn write_ca_bundle(&self, bundle: &str, read: &Configuration) -> impl Future<Output = Result<(), Error>> + Send;
    /// Writes the Secret if it still has this resourceVersion.
    fn write_secret(&self, certs: &StoredCerts, version: &str) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Stores certificates in the Kubernetes API.
#[derive(Clone)]
pub(crate) struct KubeStore {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    namespace: String,
    secret: String,
    /// The names of the configurations.
    names: Vec<String>,
}

impl KubeStore {
    /// Returns a store of this Secret and the webhook configurations of these names.
    pub(crate) fn new(client: &Client, namespace: &str, secret: &str, names: &[String]) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client.clone()),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            names: names.to_owned(),
        }
    }

    fn secret_name(&self) -> String {
        format!("{}/{}", self.namespace, self.secret)
    }
}

impl CertificateStore for KubeStore {
    async fn read_configurations(&self) -> Result<Vec<Configuration>, Error> {
        let mut all = Vec::new();
        for name in &self.names {
            let read = self.configurations.get_opt(name).await;
            let read = read.map_err(|error| Error::api("read", "webhook configuration", name, error))?;
            all.extend(read.map(|configuration| Configuration {
                name: name.clone(),
                version: configuration.resource_version().unwrap_or_default(),
                bundles: ca_bundles(&configuration),
            }));
        }
        Ok(all)
    }

    async fn changed(&self, read: &[Configuration]) {
        let waits = self.names.iter().map(|name| {
            let read = read.iter().find(|configuration| configuration.name == *name);
            let version = read.map(|read| &*read.version);
            Box::pin(async move {
                while !sees_change(&self.configurations, name, version).await {
                    sleep(WATCH_DELAY).await;
                }
            })
        });
        select_all(waits).await;
    }

    async fn read_secret(&self) -> Result<(StoredCerts, String), Error> {
        let read = self.secrets.get_opt(&self.secret).await;
        let read = read.map_err(|error| Error::api("read", "Secret", &self.secret_name(), error))?;
        let secret = read.ok_or_else(|| Error::NoSecret(self.secret_name()))?;
        Ok((parse_secret(&secret), secret.resource_version().unwrap_or_default()))
    }

    async fn write_ca_bundle(&self, bundle: &str, read: &Configuration) -> Result<(), Error> {
        let patch = Patch::Strategic(ca_bundle_patch(bundle, read));
        let patched = self.configurations.patch(&read.name, &PatchParams::default(), &patch).await;
        write_result(patched, "webhook configuration", &read.name)
    }

    async fn write_secret(&self, certs: &StoredCerts, version: &str) -> Result<(), Error> {
        let patch = Patch::Merge(secret_patch(certs, version));
        let patched = self.secrets.patch(&self.secret, &PatchParams::default(), &patch).await;
        write_result(patched, "Secret", &self.secret_name())
    }
}

/// Watches a configuration until it has another version than was read; `None` if there was none. Returns false if the watch ends or
/// fails before.
async fn sees_change(configurations: &Api<MutatingWebhookConfiguration>, name: &str, read: Option<&str>) -> bool {
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    // Begins with the object as it is: an API server that was restarted may not know changes since an older version.
    let Ok(events) = configurations.watch_metadata(&params, "0").await else { return false };
    pin_mut!(events);
    while let Some(Ok(event)) = events.next().await {
        match event {
            WatchEvent::Added(now) | WatchEvent::Modified(now) if now.resource_version().as_deref() == read => {}
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(_) => break,
            WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_) => return true,
        }
    }
    false
}

fn write_result<T>(result: kube::Result<T>, kind: &str, name: &str) -> Result<(), Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Conflict),
        Err(error) => Err(Error::api("write", kind, name, error)),
    }
}

/// Returns the CA bundle of each webhook by the webhook's name.
fn ca_bundles(configuration: &MutatingWebhookConfiguration) -> BTreeMap<String, String> {
    let bundle = |bytes: Option<&ByteString>| {
        bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
    };
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks.map(|webhook| (webhook.name.clone(), bundle(webhook.client_config.ca_bundle.as_ref()))).collect()
}

/// Returns a strategic merge patch. It finds the webhooks by name and leaves their other fields alone.
fn ca_bundle_patch(bundle: &str, read: &Configuration) -> Value {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks = read.bundles.keys().map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}}));
    json!({"metadata": {"resourceVersion": read.version}, "webhooks": webhooks.collect::<Vec<_>>()})
}

const CURRENT: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const NEXT: [&str; 3] = ["next-ca.crt", "next.crt", "next.key"];
const PREVIOUS_CA: &str = "previous-ca.crt";

fn parse_secret(secret: &Secret) -> StoredCerts {
    let text = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        String::from_utf8(bytes.0.clone()).ok()
    };
    let cert = |[ca, cert, key]: [&str; 3]| Some(ServingCert { ca: text(ca)?, cert: text(cert)?, key: text(key)? });
    StoredCerts {
        current: cert(CURRENT),
        next: cert(NEXT),
        previous_ca: text(PREVIOUS_CA),
        is_renewal_requested: secret.annotations().contains_key(RENEWAL_ANNOTATION),
    }
}

/// Returns a JSON merge patch, in which null removes a key.
fn secret_patch(certs: &StoredCerts, version: &str) -> Value {
    let mut data = serde_json::Map::new();
    let mut set = |key: &str, text: Option<&String>| {
        let value = text.map_or(Value::Null, |text| json!(ByteString(text.as_bytes().to_vec())));
        data.insert(key.to_owned(), value);
    };
    for (keys, cert) in [(CURRENT, &certs.current), (NEXT, &certs.next)] {
        let cert = cert.as_ref();
        let texts = [cert.map(|cert| &cert.ca), cert.map(|cert| &cert.cert), cert.map(|cert| &cert.key)];
        keys.into_iter().zip(texts).for_each(|(key, text)| set(key, text));
    }
    set(PREVIOUS_CA, certs.previous_ca.as_ref());
    let mut patch = json!({"metadata": {"resourceVersion": version}, "data": data});
    if !certs.is_renewal_requested {
        patch["metadata"]["annotations"] = json!({RENEWAL_ANNOTATION: null});
    }
    patch
}

#[cfg(test)]
mod tests {
    use api::describe_error;

    use super::*;

    fn cert(n: &str) -> ServingCert {
        ServingCert { ca: format!("ca{n}"), cert: format!("cert{n}"), key: format!("key{n}") }
    }

    /// Applies a patch to a Secret as the API server does.
    fn patched(mut secret: Value, patch: &Value) -> Secret {
        json_patch::merge(&mut secret, patch);
        serde_json::from_value(secret).unwrap()
    }

    #[test]
    fn rejected_write_is_one_line_with_the_servers_message() {
        let status: kube::core::Status =
            serde_json::from_value(json!({"status": "Failure", "message": "no rights", "code": 403})).unwrap();
        let written = write_result::<()>(Err(kube::Error::Api(status.boxed())), "Secret", "a/b");
        assert_eq!(describe_error(&written.unwrap_err()), "cannot write the Secret a/b: no rights");
    }

    #[test]
    fn written_certificates_are_read_back_unchanged() {
        let cases = [
            StoredCerts::default(),
            StoredCerts { current: Some(cert("1")), ..StoredCerts::default() },
            StoredCerts {
                current: Some(cert("1")),
                next: Some(cert("2")),
                previous_ca: Some("ca0".to_owned()),
                is_renewal_requested: false,
            },
        ];
        for certs in cases {
            let secret = patched(json!({}), &secret_patch(&certs, "7"));
            assert_eq!(secret.resource_version().as_deref(), Some("7"));
            assert_eq!(parse_secret(&secret), certs);
        }
    }

    #[test]
    fn ca_bundle_patch_has_version_and_every_webhook() {
        let bundles = BTreeMap::from(["a", "b"].map(|name| (name.to_owned(), "old".to_owned())));
        let read = Configuration { name: "istio-aux".to_owned(), version: "7".to_owned(), bundles };
        let patch = ca_bundle_patch("new", &read);
        let webhook = |name| json!({"name": name, "clientConfig": {"caBundle": "bmV3"}});
        assert_eq!(patch, json!({"metadata": {"resourceVersion": "7"}, "webhooks": [webhook("a"), webhook("b")]}));
    }

    #[test]
    fn renewal_request_is_removed_only_when_obeyed() {
        let requested = json!({"metadata": {"annotations": {RENEWAL_ANNOTATION: "2026-11-22T08:00:00Z", "a": "b"}}});
        let pending = StoredCerts { current: Some(cert("1")), is_renewal_requested: true, ..StoredCerts::default() };
        let kept = patched(requested.clone(), &secret_patch(&pending, "1"));
        assert_eq!(parse_secret(&kept), pending);
        let obeyed = StoredCerts { next: Some(cert("2")), is_renewal_requested: false, ..pending };
        let removed = patched(requested, &secret_patch(&obeyed, "1"));
        assert_eq!(parse_secret(&removed), obeyed);
        assert_eq!(removed.annotations().get("a").map(String::as_str), Some("b"));
    }
}
