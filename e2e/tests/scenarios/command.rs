//! The command line against a cluster: what `inject` makes of manifests is what the cluster makes, `check` finds what is
//! wrong, `finish` ends what hangs.

use std::path::{Path, PathBuf};
use std::process::Output;

use contract::names::{PROXY_CONTAINER, SHIM_CONTAINER, STATUS_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::{printed, run};
use e2e::install_methods::BINARY;
use e2e::manifests::{annotated, job, pod, pod_spec, shell, without_token};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{by_policy, default_mode};

/// Runs the command line that is in the image with these words.
fn istio_aux(words: &[&str]) -> Output {
    run(BINARY, words, "")
}

/// Returns what `istio-aux inject` makes of a manifest.
pub(crate) fn inject(manifest: &str) -> String {
    printed(&run(BINARY, &["inject", "--assume-proxy", "-f", "-"], manifest))
}

/// Returns a pod's specification without what Istio's injector and the API server generate for each pod.
fn comparable(pod: Value) -> Value {
    let pod = without_token(pod);
    let list = |field: &str| pod["spec"][field].as_array().cloned().unwrap_or_default();
    let named = |items: Vec<Value>| -> Value {
        items.into_iter().map(|item| (item["name"].as_str().unwrap_or_default().to_owned(), item)).collect()
    };
    let ours = |items: Vec<Value>| {
        items.into_iter().filter(|item| item["name"] != PROXY_CONTAINER && item["name"] != "istio-init").collect()
    };
    json!({
        "containers": named(ours(list("containers"))),
        "initContainers": named(ours(list("initContainers"))),
        "volumes": named(list("volumes")),
        "shareProcessNamespace": pod["spec"]["shareProcessNamespace"],
        "status": pod["metadata"]["annotations"][STATUS_ANNOTATION],
        "config": pod["metadata"]["annotations"]["proxy.istio.io/config"],
        "shim": pod["metadata"]["labels"]["istio-aux.io/shim"],
    })
}

/// Returns the pods that an object's templates become, named apart.
fn pods_of(object: &Value) -> Vec<Value> {
    let replicas = object["spec"]["tfReplicaSpecs"].as_object().into_iter().flatten();
    let replicas = replicas.map(|(_, replica)| (&replica["template"], replica["restartPolicy"].clone()));
    let templates =
        std::iter::once((&object["spec"]["template"], Value::Null)).filter(|(template, _)| !template.is_null());
    let pods = templates.chain(replicas).enumerate().map(|(n, (template, policy))| {
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
        pod["metadata"]["name"] = json!(format!("pod-{n}"));
        if !policy.is_null() {
            pod["spec"]["restartPolicy"] = policy;
        }
        pod
    });
    pods.collect()
}

/// Returns the examples whose templates are whole pods. Those of Katib and Argo become pods by their controllers.
fn examples() -> [PathBuf; 2] {
    ["job.yaml", "tfjob.yaml"].map(|file| Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples")).join(file))
}

/// Asserts that `inject` and the cluster's own webhook make the same of a manifest.
async fn comes_to_the_same(opted_in: &Namespace, mesh: &Namespace, file: &Path) {
    let text = std::fs::read_to_string(file).expect("the example is read");
    // JSON is what the objects are read from; the documents of an example are one each.
    let words = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
    let as_json = |text: &str| -> Value {
        serde_json::from_str(&printed(&run("kubectl", &words, text))).expect("it prints JSON")
    };
    let before = as_json(&text);
    let after = as_json(&inject(&text));
    let (before, after) = (pods_of(&before), pods_of(&after));
    assert!(!before.is_empty() && before.len() == after.len(), "{}", file.display());
    for (before, after) in before.into_iter().zip(after) {
        let by_cluster = opted_in.dry_run(before).await;
        let by_inject = mesh.dry_run(after).await;
        assert!(by_cluster.to_string().contains(SHIM_CONTAINER), "{}", file.display());
        assert_eq!(comparable(by_inject), comparable(by_cluster), "{}", file.display());
    }
}

#[tokio::test]
async fn inject_and_webhook_agree_on_the_examples() {
    let opted_in = &scenario("inject-in", &[MESH, OPT_IN]).await;
    let mesh = &scenario("inject", &[MESH]).await;
    for file in examples() {
        comes_to_the_same(opted_in, mesh, &file).await;
    }
}

#[tokio::test]
async fn injected_pod_completes_without_the_label() {
    let ns = &scenario("injected", &[MESH]).await;
    let manifest = pod("one", &pod_spec("Never", &[shell("main", "sleep 1")])).to_string();
    ns.run(serde_json::from_str(&inject(&manifest)).expect("it prints JSON"), "Succeeded").await;
}

#[tokio::test]
async fn stuck_pod_is_found_and_finished() {
    let ns = &scenario("stuck", &[MESH]).await;
    ns.create_object(job("hello", &pod_spec("Never", &[shell("main", "true")]))).await;
    ns.create_object(pod("runs", &pod_spec("Never", &[shell("main", "sleep 3600")]))).await;
    let name = ns.pod_of_job("hello").await;
    ns.pod_until(&name, "the payload's end", |pod| PodView(pod).is_stuck("main").then_some(())).await;
    ns.pod_until("runs", "main's start", |pod| PodView(pod).runs("main").then_some(())).await;

    // A pod that has just ended is given a moment.
    let findings = ns.until("check to find it", async || {
        let checked = istio_aux(&["check", "-n", ns.name(), "-o", "json"]);
        let findings: Value = serde_json::from_slice(&checked.stdout).expect("it prints JSON");
        (checked.status.code() == Some(1)).then_some(findings)
    });
    let findings = findings.await;
    let next = format!("istio-aux finish -n {} {name}", ns.name());
    let all = findings["findings"].as_array().expect("a list").iter();
    let problems =
        all.filter(|finding| finding["severity"] == "problem").map(|finding| finding["remediation"].as_str());
    assert_eq!(problems.collect::<Vec<_>>(), [Some(next.as_str())], "{findings:#}");

    let refused = istio_aux(&["finish", "-n", ns.name(), "runs"]);
    assert_eq!(refused.status.code(), Some(1));
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(line, format!("istio-aux: pod {}/runs: skipped: its container main still runs\n", ns.name()));

    let dry = printed(&istio_aux(&["finish", "-n", ns.name(), "--all-stuck", "--dry-run"]));
    assert!(dry.contains("would be finished"), "{dry}");
    assert!(PodView(&ns.pod(&name).await).is_stuck("main"), "a dry run does nothing");

    let done = printed(&istio_aux(&["finish", "-n", ns.name(), "--all-stuck"]));
    assert_eq!(done, format!("pod {}/{name}: finished: Succeeded\n", ns.name()));
    assert!(PodView(&ns.pod("runs").await).runs("main"), "the other was left alone");
}

#[tokio::test]
async fn check_before_an_installation_says_which_proxies_istio_makes() {
    let text = printed(&istio_aux(&["check", "--pre"]));
    assert!(text.contains("dry run in default: Istio makes its proxy an ordinary container"), "{text}");
}

#[tokio::test]
async fn check_reports_each_pod_and_a_dry_run() {
    let ns = &scenario("check", &[MESH, OPT_IN]).await;
    ns.create_object(pod("shimmed", &pod_spec("Never", &[shell("main", "sleep 600")]))).await;
    let left = annotated(pod("left", &pod_spec("Never", &[shell("main", "sleep 600")])), "istio-aux.io/mode", "off");
    ns.create_object(left).await;
    let text = printed(&istio_aux(&["check", "-n", ns.name()]));
    let shimmed = text.lines().find(|line| line.starts_with("ok       pod shimmed (")).unwrap_or_default();
    assert!(shimmed.contains(&format!("): mode {}: ", default_mode())), "{text}");
    let left = text.lines().find(|line| line.contains("pod left (")).unwrap_or_default();
    assert!(left.contains("not changed by istio-aux: the pod opted out, by istio-aux.io/mode"), "{text}");
    assert!(text.contains(&format!("namespaces opted in: {}", ns.name())), "{text}");
    assert!(text.contains("Istio's injector is called after istio-aux: "), "{text}");
    let dry_run = format!("dry run in {}: a pod that runs to completion gets mode {}", ns.name(), default_mode());
    assert!(text.contains(&dry_run), "{text}");
}

#[tokio::test]
async fn check_explains_a_job_by_its_pod_and_a_dry_run() {
    let ns = &scenario("explained", &[MESH, OPT_IN]).await;
    ns.create_object(job("hello", &pod_spec("Never", &[shell("main", "sleep 600")]))).await;
    let name = ns.pod_of_job("hello").await;
    let text = printed(&istio_aux(&["check", "-n", ns.name(), "job/hello", "-o", "json"]));
    let why: Value = serde_json::from_str(&text).expect("it prints JSON");
    assert_eq!(why["optedIn"], true, "{text}");
    assert_eq!(why["pods"][0]["name"], name, "{text}");
    assert_eq!(why["pods"][0]["decision"]["mode"], default_mode(), "{text}");
    assert_eq!(why["now"][0]["result"], "injected", "{text}");
    assert_eq!(why["now"][0]["mode"], default_mode(), "{text}");
}

#[tokio::test]
async fn check_explains_a_pod_without_the_label() {
    let ns = &scenario("why-not", &[MESH]).await;
    ns.create_object(pod("one", &pod_spec("Never", &[shell("main", "sleep 600")]))).await;
    let text = printed(&istio_aux(&["check", "-n", ns.name(), "pod/one"]));
    assert!(text.contains("not opted in: neither its namespace nor the pod has the label"), "{text}");
    assert!(text.contains("pod one (") && text.contains("not changed by istio-aux"), "{text}");
}

#[tokio::test]
async fn support_bundle_has_what_the_shim_logs_and_no_variable() {
    let ns = &scenario("bundle", &[MESH, OPT_IN]).await;
    let mut main = shell("main", "sleep 600");
    main["env"] = json!([{"name": "TOKEN", "value": "hunter2"}]);
    ns.create_object(pod("one", &pod_spec("Never", &[main]))).await;
    ns.pod_until("one", "its payload", |pod| PodView(pod).runs("main").then_some(())).await;
    let text = printed(&istio_aux(&["support-bundle", "-n", ns.name(), "-o", "json"]));
    let bundle: Value = serde_json::from_str(&text).expect("it prints JSON");
    let report = &bundle["pods"][0];
    assert_eq!(report["metadata"]["name"], "one", "{text}");
    assert_eq!(report["spec"]["containers"][0]["name"], PROXY_CONTAINER, "{text}");
    if default_mode() == "native" {
        assert!(report["log"].as_str().is_some_and(|log| log.contains("main")), "the shim's log: {report}");
    }
    let is_scheduled = |event: &Value| event.as_str().is_some_and(|event| event.contains(" Scheduled Pod/one: "));
    assert!(bundle["events"].as_array().is_some_and(|events| events.iter().any(is_scheduled)), "{text}");
    assert!(!text.contains("hunter2"), "a variable's value");
}

#[tokio::test]
async fn version_names_the_shims_in_use() {
    let ns = &scenario("version", &[MESH, OPT_IN]).await;
    ns.create_object(pod("one", &pod_spec("Never", &[shell("main", "sleep 600")]))).await;
    let text = printed(&istio_aux(&["version", "-o", "json"]));
    let versions: Value = serde_json::from_str(&text).expect("it prints JSON");
    let versions_of = |what: &str| versions[what].as_array().expect("a list").iter().map(|used| &used["version"]);
    let expected = json!(env!("CARGO_PKG_VERSION"));
    let webhooks: &[&Value] = if by_policy() { &[] } else { &[&expected] };
    assert!(versions_of("webhook").eq(webhooks.iter().copied()), "{text}");
    assert!(
        versions_of("shims").next().is_some() && versions_of("shims").all(|version| *version == expected),
        "{text}"
    );
}
