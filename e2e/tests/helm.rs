//! The chart on the cluster: installed, tried, upgraded and rolled back under a stream of pod creations, and removed without a
//! trace. In a binary of its own: it takes the installation away, and puts it back.

use std::panic::{AssertUnwindSafe, resume_unwind};

use e2e::admission::{until_drained, while_pods_are_created};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::{printed, run};
use e2e::manifests::{pod, pod_spec, shell};
use e2e::{Namespace, scenario};
use futures::FutureExt;
use kube::api::PostParams;
use serde_json::Value;

/// What a command printed.
fn say(program: &str, words: &[&str]) -> String {
    printed(&run(program, words, ""))
}

fn helm(words: &[&str]) -> String {
    say("helm", &[words, &["--namespace=istio-aux"]].concat())
}

fn quick() -> Value {
    pod("one", &pod_spec("Never", &[shell("main", "true")]))
}

/// Waits until pods are admitted: the webhook's Service reaches it a moment after it is ready.
async fn until_pods_are_admitted(ns: &Namespace) {
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    ns.until("pods to be admitted", async || ns.try_create(quick(), &parameters).await.ok().map(|_| ())).await;
}

/// Objects of ours, of whatever kind.
fn left() -> Vec<String> {
    let kinds = say("kubectl", &["api-resources", "--verbs=list", "--output=name"]);
    let mut kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    kinds.sort_unstable();
    let all = kinds.join(",");
    let listed = say(
        "kubectl",
        &["get", &all, "--all-namespaces", "--selector=app.kubernetes.io/name=istio-aux", "--output=name"],
    );
    listed.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn release_is_upgraded_without_a_loss_and_removed_without_a_trace() {
    scenario("helm", &[MESH, OPT_IN], async |ns: &Namespace| {
        say("./install", &["remove"]);
        let tried = AssertUnwindSafe(async {
            helm(&["install", "istio-aux", "helm/istio-aux", "--create-namespace", "--wait", "--timeout=2m"]);
            until_pods_are_admitted(ns).await;
            assert!(helm(&["test", "istio-aux"]).contains("Succeeded"), "the chart's own test");
            while_pods_are_created(ns, "an upgrade and a rollback", async || {
                let upgrade =
                    ["upgrade", "istio-aux", "helm/istio-aux", "--set=log.format=json", "--wait", "--timeout=2m"];
                tokio::task::spawn_blocking(move || {
                    helm(&upgrade);
                    helm(&["rollback", "istio-aux", "1", "--wait", "--timeout=2m"])
                })
                .await
                .expect("helm is run");
                until_drained(ns).await;
            })
            .await;
            helm(&["uninstall", "istio-aux", "--wait", "--timeout=2m"]);
            ns.try_create(quick(), &PostParams::default()).await.expect("pods can be created at once");
            ns.until("everything of ours to go", async || left().is_empty().then_some(())).await;
        })
        .catch_unwind()
        .await;
        helm(&["uninstall", "istio-aux", "--wait", "--ignore-not-found"]);
        say("kubectl", &["delete", "namespace", "istio-aux", "--ignore-not-found"]);
        say("./install", &[]);
        tried.unwrap_or_else(|panic| resume_unwind(panic));
    })
    .await;
}
