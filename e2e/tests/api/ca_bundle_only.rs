//! The webhook's account has the right to patch its webhook configurations, and a policy limits that to `caBundle`. Every patch is a
//! dry run: it passes admission, and changes nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use e2e::cluster::CONFIGURATIONS;
use e2e::command::run;
use e2e::kubectl::kubectl;
use e2e::namespace::WAIT_TIMEOUT;
use serde_json::{Value, json};

/// Returns the API server's answer to a patch by the webhook's account.
fn answer(configuration: &str, kind: &str, patch: &Value) -> Result<(), String> {
    let account = "--as=system:serviceaccount:istio-aux:istio-aux";
    let kind = format!("--type={kind}");
    let words = ["patch", "mutatingwebhookconfiguration", configuration, account, "--dry-run=server", &kind, "-p"];
    let output = run("kubectl", &[&words[..], &[&patch.to_string()]].concat(), "");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns its answer to one operation on one field.
fn answer_to(configuration: &str, operation: &str, field: &str, value: &Value) -> Result<(), String> {
    answer(configuration, "json", &json!([{"op": operation, "path": field, "value": value}]))
}

/// Waits until the policy is in effect: the API server reads it a moment after it is created.
fn wait_for_the_policy() {
    let began = Instant::now();
    while answer_to("istio-aux", "replace", "/webhooks/0/timeoutSeconds", &json!(9)).is_ok() {
        assert!(began.elapsed() < WAIT_TIMEOUT, "the policy does not limit the account");
        sleep(Duration::from_millis(200));
    }
}

#[test]
fn webhooks_account_changes_the_ca_bundle_only() {
    wait_for_the_policy();
    let attempts = [
        ("replace", "/webhooks/0/rules/0/resources", json!(["*/*"])),
        ("replace", "/webhooks/0/matchPolicy", json!("Exact")),
        ("remove", "/webhooks/0/namespaceSelector", Value::Null),
        ("remove", "/webhooks/0/objectSelector", Value::Null),
        ("remove", "/webhooks/0/matchConditions", Value::Null),
        ("remove", "/webhooks/4", Value::Null),
        ("replace", "/webhooks/0/clientConfig/service/name", json!("other")),
        ("add", "/webhooks/0/clientConfig/service/port", json!(8443)),
        ("add", "/metadata/labels/other", json!("label")),
        ("add", "/metadata/finalizers", json!(["example.com/kept"])),
    ];
    for (operation, path, value) in attempts {
        for configuration in CONFIGURATIONS {
            let reason = answer_to(configuration, operation, path, &value).expect_err(path);
            assert!(reason.contains("may change caBundle only"), "{configuration} {path}: {reason}");
        }
    }
}

#[test]
fn webhooks_account_changes_each_webhooks_ca_bundle() {
    for configuration in CONFIGURATIONS {
        let names = "--output=jsonpath={.webhooks[*].name}";
        let names = kubectl(&["get", "mutatingwebhookconfiguration", configuration, names]);
        let mut names: Vec<&str> = names.split(' ').collect();
        // The webhook sorts them by name, and the API server then stores them in that order.
        names.sort_unstable();
        for names in [names.clone(), names.into_iter().rev().collect()] {
            // The API server accepts a webhook without a CA.
            let webhooks = names.iter().map(|name| json!({"name": name, "clientConfig": {"caBundle": ""}}));
            let patch = json!({"webhooks": webhooks.collect::<Vec<_>>()});
            answer(configuration, "strategic", &patch).expect("the account may change caBundle");
        }
    }
}
