//! The rights of a service account, as the API server lists them.

use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{client, client_as};

/// Returns the rules for an account in a namespace, a line each: `get,patch GROUP/RESOURCES [NAMES]`, or `get PATHS`. Leaves out what
/// an account has that no role names.
pub async fn rules(account_namespace: &str, account: &str, namespace: &str) -> Vec<String> {
    let of_every_account = all_rules(account_namespace, "account-that-no-role-names", namespace).await;
    let mut rules = all_rules(account_namespace, account, namespace).await;
    rules.retain(|rule| !of_every_account.contains(rule));
    rules.sort_unstable();
    rules
}

/// Asserts that an account has these rules in its own namespace, and those in each other one.
pub async fn assert_rules(account_namespace: &str, account: &str, own: &[&str], others: &[&str]) {
    let namespaces: Api<Namespace> = Api::all(client().await);
    let namespaces = namespaces.list_metadata(&ListParams::default()).await.expect("namespaces are listed");
    for namespace in namespaces.items.iter().map(ResourceExt::name_any) {
        let expected = if namespace == account_namespace { own } else { others };
        assert_eq!(rules(account_namespace, account, &namespace).await, expected, "{namespace}");
    }
}

async fn all_rules(account_namespace: &str, account: &str, namespace: &str) -> Vec<String> {
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client_as(account_namespace, account).await);
    let review = serde_json::from_value(json!({"spec": {"namespace": namespace}})).expect("it is a review");
    let review = reviews.create(&PostParams::default(), &review).await.expect("every account may ask");
    let status = serde_json::to_value(review.status.expect("it is answered")).expect("rules are JSON");
    let rules = ["resourceRules", "nonResourceRules"].map(|field| status[field].as_array().expect("a list"));
    rules.into_iter().flatten().map(in_a_line).collect()
}

fn words(rule: &Value, field: &str) -> String {
    let list = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
    list.collect::<Vec<_>>().join(",")
}

fn in_a_line(rule: &Value) -> String {
    if rule.get("nonResourceURLs").is_some() {
        return format!("{} {}", words(rule, "verbs"), words(rule, "nonResourceURLs"));
    }
    let [verbs, groups, resources, names] =
        ["verbs", "apiGroups", "resources", "resourceNames"].map(|field| words(rule, field));
    format!("{verbs} {groups}/{resources} [{names}]")
}
