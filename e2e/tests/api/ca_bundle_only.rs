//! The webhook's account has the right to patch its webhook configurations, and a policy limits that to `caBundle`. Every patch is a
//! dry run: it passes admission, and changes nothing.

use std::time::Instant;

use e2e::cluster::{CONFIGURATIONS, client_as};
use e2e::namespace::WAIT_TIMEOUT;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

/// Does as the webhook's account does.
struct Account(Api<MutatingWebhookConfiguration>);

impl Account {
    async fn new() -> Self {
        Self(Api::all(client_as("istio-aux", "istio-aux").await))
    }

    async fn configuration(&self, name: &str) -> Value {
        let mut configuration = self.0.get(name).await.expect("the account may read it");
        // The webhook may write its CA meanwhile.
        configuration.metadata.resource_version = None;
        serde_json::to_value(configuration).expect("an object is JSON")
    }

    /// Returns the API server's answer to a patch.
    async fn patch(&self, name: &str, patch: &Patch<Value>) -> Result<(), String> {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        self.0.patch(name, &dry_run, patch).await.map(drop).map_err(|error| error.to_string())
    }

    /// Returns its answer to the configuration with one field changed.
    async fn change(&self, configuration: &Value, path: &str, value: &Value) -> Result<(), String> {
        let mut changed = configuration.clone();
        change(&mut changed, path, value.clone());
        assert_ne!(changed, *configuration, "{path}");
        self.merge(&changed).await
    }

    /// Returns its answer to a configuration as a whole.
    async fn merge(&self, configuration: &Value) -> Result<(), String> {
        let name = configuration["metadata"]["name"].as_str().expect("it has a name");
        self.patch(name, &Patch::Merge(configuration.clone())).await
    }

    /// Waits until the policy is in effect: the API server reads it a moment after it is created.
    async fn wait_for_the_policy(&self) {
        let (began, configuration) = (Instant::now(), self.configuration("istio-aux").await);
        while self.change(&configuration, "/webhooks/0/timeoutSeconds", &json!(9)).await.is_ok() {
            assert!(began.elapsed() < WAIT_TIMEOUT, "the policy does not limit the account");
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Sets a field of an object, or an element of a list, of which `-` is the one after the last. Null removes it.
fn change(object: &mut Value, path: &str, value: Value) {
    let (parent, key) = path.rsplit_once('/').expect("a path has a slash");
    let key = &*key.replace("~1", "/");
    match object.pointer_mut(parent).unwrap_or_else(|| panic!("there is no {parent}")) {
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) if value.is_null() => drop(list.remove(key.parse().expect("it is an index"))),
        // In the metadata a merge patch leaves out what it does not have.
        parent if value.is_null() && path.starts_with("/webhooks") => {
            parent.as_object_mut().expect("it is an object").remove(key);
        }
        parent => parent[key] = value,
    }
}

/// Returns one of two words that is not the present one.
fn other(present: &Value, words: [&str; 2]) -> Value {
    json!(words.into_iter().find(|word| present != word))
}

/// Returns changes of each field of a webhook but `caBundle`.
fn changes(webhook: &Value) -> Vec<(&'static str, Value)> {
    vec![
        ("", Value::Null),
        ("/name", json!("other.istio-aux.io")),
        ("/admissionReviewVersions", json!(["v1", "v1beta1"])),
        ("/clientConfig", json!({"url": "https://example.com/"})),
        ("/clientConfig/service/name", json!("other")),
        ("/clientConfig/service/namespace", json!("other")),
        ("/clientConfig/service/path", json!("/other")),
        ("/clientConfig/service/port", json!(8443)),
        ("/failurePolicy", other(&webhook["failurePolicy"], ["Fail", "Ignore"])),
        ("/matchConditions", json!([{"name": "none", "expression": "false"}])),
        ("/matchPolicy", json!("Exact")),
        ("/namespaceSelector", json!({})),
        ("/objectSelector", json!({"matchLabels": {"other": "label"}})),
        ("/reinvocationPolicy", other(&webhook["reinvocationPolicy"], ["Never", "IfNeeded"])),
        ("/rules/0/resources", json!(["*/*"])),
        ("/rules/0/operations", json!(["*"])),
        ("/sideEffects", json!("NoneOnDryRun")),
        ("/timeoutSeconds", json!(9)),
    ]
}

#[tokio::test]
async fn webhooks_account_changes_the_ca_bundle_only() {
    let account = Account::new().await;
    account.wait_for_the_policy().await;
    for name in CONFIGURATIONS {
        let configuration = account.configuration(name).await;
        let webhooks = configuration["webhooks"].as_array().expect("it has webhooks");
        // The control: the same patch without a change, and with one of the CA.
        account.merge(&configuration).await.expect("it changes nothing");
        for index in 0..webhooks.len() {
            let path = format!("/webhooks/{index}/clientConfig/caBundle");
            account.change(&configuration, &path, &Value::Null).await.expect("the account may change caBundle");
        }
        let of_webhook = |(index, webhook): (usize, &Value)| {
            changes(webhook).into_iter().map(move |(field, value)| (format!("/webhooks/{index}{field}"), value))
        };
        let mut another = webhooks[0].clone();
        another["name"] = json!("another.istio-aux.io");
        let owner = json!([{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "0"}]);
        let of_configuration = [
            ("/webhooks/-", another),
            ("/metadata/labels/other", json!("label")),
            ("/metadata/labels/app.kubernetes.io~1name", Value::Null),
            ("/metadata/annotations", json!({"other": "annotation"})),
            ("/metadata/finalizers", json!(["example.com/kept"])),
            ("/metadata/ownerReferences", owner),
        ];
        let of_configuration = of_configuration.map(|(path, value)| (path.to_owned(), value));
        for (path, value) in webhooks.iter().enumerate().flat_map(of_webhook).chain(of_configuration) {
            let reason = account.change(&configuration, &path, &value).await.expect_err(&path);
            assert!(reason.contains("may change caBundle only"), "{name} {path}: {reason}");
        }
    }
}

#[tokio::test]
async fn webhooks_account_changes_each_webhooks_ca_bundle() {
    let account = Account::new().await;
    for name in CONFIGURATIONS {
        let configuration = account.configuration(name).await;
        let webhooks = configuration["webhooks"].as_array().expect("it has webhooks");
        let mut names: Vec<_> = webhooks.iter().map(|webhook| &webhook["name"]).collect();
        // The webhook sorts them by name, and the API server then stores them in that order.
        names.sort_unstable_by_key(|name| name.as_str());
        for names in [names.clone(), names.into_iter().rev().collect()] {
            // The API server accepts a webhook without a CA.
            let webhooks = names.iter().map(|name| json!({"name": name, "clientConfig": {"caBundle": ""}}));
            let patch = json!({"webhooks": webhooks.collect::<Vec<_>>()});
            account.patch(name, &Patch::Strategic(patch)).await.expect("the account may change caBundle");
        }
    }
}
