//! A namespace for one scenario.

mod describe;
mod objects;
mod pods;
mod wait;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ServiceAccount};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Label, client};
use crate::harness::block_on;

pub use objects::{name_of, resource_of};
pub use wait::WAIT_TIMEOUT;
pub(crate) use wait::slowness;

/// Creates a namespace of its own for a scenario, with these labels, and returns it once pods may be created in it.
pub async fn scenario(name: &str, labels: &[Label]) -> Namespace {
    let client = client().await;
    let name = unique_name(name);
    let labels: Value = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let object = json!({"metadata": {"name": name, "labels": labels}});
    let namespaces: Api<NamespaceObject> = Api::all(client.clone());
    let object = serde_json::from_value(object).expect("it is a namespace");
    namespaces.create(&PostParams::default(), &object).await.expect("the namespace is created");
    let namespace = Namespace { client, name, is_ours: true };
    namespace.wait_for_service_account().await;
    namespace
}

/// A namespace of one scenario. Removes it when this is dropped. Keeps it with `KEEP=1`, and after a failure, when the pods and
/// their containers' logs are printed.
pub struct Namespace {
    client: Client,
    name: String,
    /// False for one that another program creates and removes.
    is_ours: bool,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        let (name, has_failed) = (self.name.clone(), thread::panicking());
        // In a thread and with a client of its own: the scenario's runtime waits for this.
        let ended = thread::spawn(move || block_on(end(name, has_failed))).join();
        if let Err(panic) = ended
            && !has_failed
        {
            resume_unwind(panic);
        }
    }
}

/// Removes the namespace of a scenario, or says that it is kept.
async fn end(name: String, has_failed: bool) {
    let namespace = Namespace { client: client().await, name, is_ours: false };
    if has_failed {
        eprintln!("{}", namespace.describe().await);
    }
    if has_failed || std::env::var_os("KEEP").is_some_and(|value| !value.is_empty()) {
        let name = namespace.name();
        eprintln!("namespace {name} is kept; next: kubectl -n {name} get pods, and kubectl delete namespace {name}");
        return;
    }
    let namespaces: Api<NamespaceObject> = Api::all(namespace.client.clone());
    namespaces.delete(namespace.name(), &DeleteParams::default()).await.expect("the namespace is deleted");
}

impl Namespace {
    /// Returns a namespace that another program creates, once pods may be created in it. It is not removed.
    pub async fn found(name: &str) -> Self {
        let namespace = Self { client: client().await, name: name.to_owned(), is_ours: false };
        namespace.wait_for_service_account().await;
        namespace
    }

    /// Waits for the account that the controller manager makes: pods are refused until then.
    async fn wait_for_service_account(&self) {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.name);
        self.until("the default service account", async || accounts.get_opt("default").await.ok().flatten()).await;
    }

    /// Returns the namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Returns a namespace's name that no other run has.
pub fn unique_name(scenario: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() % 100_000_000);
    format!("e2e-{scenario}-{since}{}", COUNT.fetch_add(1, Ordering::Relaxed))
}
