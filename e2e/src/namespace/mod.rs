//! A namespace for one scenario.

mod describe;
mod objects;
mod pods;
mod wait;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ServiceAccount};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Label, client};

pub use objects::{name_of, resource_of};
pub use wait::WAIT_TIMEOUT;

/// Runs a scenario in a namespace of its own with these labels, and removes the namespace. Keeps it with `KEEP=1`, and after a
/// failure, when the pods and their containers' logs are printed.
pub async fn scenario(name: &str, labels: &[Label], body: impl AsyncFnOnce(&Namespace)) {
    let namespace = Namespace::create(name, labels).await;
    let ended = AssertUnwindSafe(body(&namespace)).catch_unwind().await;
    match ended {
        Ok(()) if std::env::var_os("KEEP").is_none_or(|value| value.is_empty()) => namespace.delete_itself().await,
        Ok(()) => namespace.say_kept(),
        Err(panic) => {
            eprintln!("{}", namespace.describe().await);
            namespace.say_kept();
            resume_unwind(panic);
        }
    }
}

/// A namespace of one scenario.
pub struct Namespace {
    client: Client,
    name: String,
}

impl Namespace {
    async fn create(scenario: &str, labels: &[Label]) -> Self {
        let client = client().await;
        let name = unique_name(scenario);
        let labels: Value = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let object = json!({"metadata": {"name": name, "labels": labels}});
        let namespaces: Api<NamespaceObject> = Api::all(client.clone());
        let object = serde_json::from_value(object).expect("it is a namespace");
        namespaces.create(&PostParams::default(), &object).await.expect("the namespace is created");
        let namespace = Self { client, name };
        namespace.wait_for_service_account().await;
        namespace
    }

    /// Returns a namespace that another program creates, once pods may be created in it. It is not removed.
    pub async fn found(name: &str) -> Self {
        let namespace = Self { client: client().await, name: name.to_owned() };
        namespace.wait_for_service_account().await;
        namespace
    }

    /// Waits for the account that the controller manager makes: pods are refused until then.
    async fn wait_for_service_account(&self) {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.name);
        self.until("the default service account", async || accounts.get_opt("default").await.ok().flatten()).await;
    }

    async fn delete_itself(&self) {
        let namespaces: Api<NamespaceObject> = Api::all(self.client.clone());
        namespaces.delete(&self.name, &DeleteParams::default()).await.expect("the namespace is deleted");
    }

    fn say_kept(&self) {
        eprintln!("namespace {0} is kept; next: kubectl -n {0} get pods, and kubectl delete namespace {0}", self.name);
    }

    /// Returns the namespace's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the namespace is gone.
    pub async fn until_removed(&self) {
        let namespaces: Api<NamespaceObject> = Api::all(self.client.clone());
        self.until("the namespace to go", async || {
            namespaces.get_opt(&self.name).await.expect("namespaces are read").is_none().then_some(())
        })
        .await;
    }
}

/// Returns a namespace's name that no other run has.
#[must_use]
pub fn unique_name(scenario: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() % 100_000_000);
    format!("e2e-{scenario}-{since}{}", COUNT.fetch_add(1, Ordering::Relaxed))
}
