//! The annotation by which the kubelet's report reaches the shim: who writes it, and when.

use std::process::Output;

use contract::names::ENDED_ANNOTATION;
use contract::version::Version;
use e2e::cluster::client;
use e2e::command::{printed, run};
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::namespace::unique_name;
use e2e::policies::{by_policy, install_policies};
use e2e::{Namespace, scenario};
use json_patch::merge;
use serde_json::{Value, json};

const TABLE: &str = include_str!("../../../inject/tests/ended.yaml");
const AS_NODE: [&str; 3] = ["--as=e2e-node", "--as-group=system:nodes", "--as-group=system:masters"];

/// Runs kubectl in a namespace, with a document on standard input.
fn kubectl_in(ns: &Namespace, words: &[&str], input: &str) -> Output {
    run("kubectl", &[&["-n", ns.name()], words].concat(), input)
}

/// Reports a status as this user. Returns the pod as the API server stores it.
fn report(ns: &Namespace, name: &str, status: &Value, user: &[&str]) -> Value {
    let patch = json!({"status": status}).to_string();
    let words =
        [&["patch", "pod", name, "--subresource=status", "--type=merge", "-o=json", "--patch", &patch][..], user];
    serde_json::from_str(&printed(&kubectl_in(ns, &words.concat(), ""))).expect("a pod is JSON")
}

fn table() -> Value {
    serde_saphyr::from_str(TABLE).expect("the table is YAML")
}

/// Creates a case's pod, which no kubelet takes, and reports its status. Returns the pod as the API server stores it.
fn stored(ns: &Namespace, name: &str, case: &Value, labels: &Value) -> Value {
    stored_by(&AS_NODE, ns, name, case, labels)
}

fn stored_by(user: &[&str], ns: &Namespace, name: &str, case: &Value, labels: &Value) -> Value {
    let mut pod = table()["pod"].clone();
    merge(&mut pod, &case["pod"]);
    let status = pod["status"].take();
    merge(&mut pod, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}));
    pod["spec"]["schedulerName"] = json!("nobody");
    printed(&kubectl_in(ns, &[&["create", "-f=-"][..], &AS_NODE].concat(), &pod.to_string()));
    report(ns, name, &status, user)
}

/// Returns the cases of the table in which the annotation is another one than the table's.
async fn wrong_cases(ns: &Namespace, labels: &Value) -> Vec<String> {
    let version = client().await.apiserver_version().await.expect("the server has a version");
    let version = Version::parse(&version.git_version).expect("it is a version");
    let is_for = |case: &&Value| {
        case["offline"] != true && case["since"].as_str().and_then(Version::parse).is_none_or(|since| version >= since)
    };
    let table = table();
    let cases = table["cases"].as_array().expect("cases are a list").iter().filter(is_for).enumerate();
    let found = cases.map(|(number, case)| {
        let pod = stored(ns, &format!("case-{number}"), case, labels);
        (case, pod["metadata"]["annotations"][ENDED_ANNOTATION].clone())
    });
    let wrong = found.filter(|(case, found)| *found != case["ended"]);
    wrong.map(|(case, found)| format!("{}: {found}, not {}", case["case"], case["ended"])).collect()
}

#[tokio::test]
async fn webhook_reports_the_end_as_the_table_has_it() {
    let ns = &scenario("ended", &[]).await;
    let wrong = wrong_cases(ns, &json!({})).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn policy_reports_the_end_as_the_table_has_it() {
    let ns = &scenario("ended-policy", &[by_policy("e2e-ended")]).await;
    // The webhook leaves pods with its own label alone.
    let labels = json!({"app.kubernetes.io/name": "istio-aux"});
    // The table's first case has the annotation.
    let first = table()["cases"][0].clone();
    let reports = || {
        let pod = stored(ns, &unique_name("probe"), &first, &labels);
        pod["metadata"]["annotations"][ENDED_ANNOTATION].is_string()
    };
    assert!(!reports(), "without the policy");
    let _installed = install_policies("e2e-ended", &[]);
    ns.until("the policy to be effective", async || reports().then_some(())).await;
    let wrong = wrong_cases(ns, &labels).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn report_of_no_node_is_not_an_end() {
    let ns = &scenario("ended-no-node", &[]).await;
    // The table's first case has the annotation.
    let first = &table()["cases"][0];
    for (name, user, is_end) in [("node", &AS_NODE[..], true), ("other", &["--as=e2e-node", AS_NODE[2]], false)] {
        let pod = stored_by(user, ns, name, first, &json!({}));
        assert_eq!(pod["metadata"]["annotations"][ENDED_ANNOTATION].is_string(), is_end, "{name}: {pod}");
    }
}

#[tokio::test]
async fn nobody_but_a_node_writes_the_annotation() {
    let ns = &scenario("ended-guard", &[]).await;
    let mut one = pod("one", &pod_spec("Never", &[shell("main", "true")]));
    one["spec"]["schedulerName"] = json!("nobody");
    let forged = annotated(one.clone(), ENDED_ANNOTATION, "main=0").to_string().replace("\"one\"", "\"two\"");
    let note = json!({"metadata": {"annotations": {ENDED_ANNOTATION: "main=0"}}}).to_string();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "target": {"apiVersion": "v1", "kind": "Node", "name": "node1"},
        "metadata": {"name": "one", "annotations": {ENDED_ANNOTATION: "main=0"}},
    });
    let of_pod = format!("--raw=/api/v1/namespaces/{}/pods/one/binding", ns.name());
    let attempts: [(&[&str], &str); 5] = [
        (&["create", "-f=-"], &forged),
        (&["create", "-f=-"], &binding.to_string()),
        (&["create", &of_pod, "-f=-"], &binding.to_string()),
        (&["patch", "pod", "one", "--patch", &note], ""),
        (&["patch", "pod", "one", "--subresource=status", "--patch", &note], ""),
    ];
    ns.create_object(one).await;
    for (words, input) in attempts {
        let refused = kubectl_in(ns, words, input);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && text.contains("is written by istio-aux only"), "{words:?}: {text}");
    }
}
