//! The rights of a service account, as the API server lists them.

use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::cluster::client_as;

/// Returns the rules for an account in a namespace, a line each: `get,patch GROUP/RESOURCES [NAMES]`. Leaves out the rights that
/// every account has, to ask about itself.
pub async fn rules(account_namespace: &str, account: &str, namespace: &str) -> Vec<String> {
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client_as(account_namespace, account).await);
    let review = serde_json::from_value(json!({"spec": {"namespace": namespace}})).expect("it is a review");
    let review = reviews.create(&PostParams::default(), &review).await.expect("every account may ask");
    let rules = serde_json::to_value(review.status.expect("it is answered").resource_rules).expect("rules are JSON");
    let mut lines: Vec<String> =
        rules.as_array().expect("a list").iter().filter(|rule| !is_of_every_account(rule)).map(in_a_line).collect();
    lines.sort_unstable();
    lines
}

fn words(rule: &Value, field: &str) -> String {
    let list = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
    list.collect::<Vec<_>>().join(",")
}

fn is_of_every_account(rule: &Value) -> bool {
    words(rule, "verbs") == "create"
        && words(rule, "resources").split(',').all(|resource| resource.starts_with("selfsubject"))
}

fn in_a_line(rule: &Value) -> String {
    let [verbs, groups, resources, names] =
        ["verbs", "apiGroups", "resources", "resourceNames"].map(|field| words(rule, field));
    format!("{verbs} {groups}/{resources} [{names}]")
}
