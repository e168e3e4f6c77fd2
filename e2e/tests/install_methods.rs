//! Each method of installing: a Job completes, the certificate is renewed or the release upgraded under a stream of pod
//! creations, and it is removed without a trace. Removes the installation, and installs it again.

use std::panic::{AssertUnwindSafe, resume_unwind};

use e2e::admission::{expiries, until_drained, while_pods_are_created};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::in_background;
use e2e::install_methods::{ALL, InstallMethod, helm, leftover_objects, remove_all};
use e2e::kubectl::kubectl;
use e2e::manifests::{job, pod, pod_spec, shell};
use e2e::{Namespace, scenario};
use futures::FutureExt;
use serde_json::Value;

fn quick() -> Value {
    pod("one", &pod_spec("Never", &[shell("main", "true")]))
}

/// Installs by a method, runs a Job, runs the method's own case, and removes it.
async fn works_and_leaves_nothing(name: &'static str, method: InstallMethod) {
    println!("{name}");
    let ns = &scenario(&format!("install-{name}"), &[MESH, OPT_IN]).await;
    in_background(move || method.install()).await;
    ns.create_object(job("work", &pod_spec("Never", &[shell("main", "sleep 1")]))).await;
    ns.until_complete("work").await;
    match name {
        "cert-manager" => renew_by_cert_manager(ns).await,
        "helm" => test_and_upgrade_the_release(ns).await,
        _ => {}
    }
    in_background(move || method.remove()).await;
    ns.try_create(quick()).await.expect("pods can be created at once");
    ns.until("everything of ours to go", async || leftover_objects().is_empty().then_some(())).await;
}

/// Renews the certificate as `cmctl renew` does, and waits until both replicas serve another.
async fn renew_by_cert_manager(ns: &Namespace) {
    let before = expiries().await;
    let condition = r#"{"status": {"conditions": [{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "a test", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}"#;
    while_pods_are_created(ns, "a renewal by cert-manager", async || {
        let certificate = ["--namespace=istio-aux", "patch", "certificate", "istio-aux"];
        kubectl(&[&certificate[..], &["--subresource=status", "--type=merge", "--patch", condition]].concat());
        ns.until("both replicas to serve another certificate", async || {
            let now = expiries().await;
            let are_new = now.iter().all(|expiry| expiry.is_some() && !before.contains(expiry));
            (now.len() == 2 && now[0] == now[1] && are_new).then_some(())
        })
        .await;
    })
    .await;
}

/// Runs the release's own test, an upgrade and a rollback.
async fn test_and_upgrade_the_release(ns: &Namespace) {
    assert!(helm(&["test", "istio-aux"]).contains("Succeeded"), "the chart's own test");
    while_pods_are_created(ns, "an upgrade and a rollback", async || {
        in_background(|| {
            let values = ["--reset-then-reuse-values", "--set=log.format=json"];
            helm(&[&["upgrade", "istio-aux", "helm/istio-aux", "--wait", "--timeout=2m"], &values[..]].concat());
            helm(&["rollback", "istio-aux", "1", "--wait", "--timeout=2m"])
        })
        .await;
        until_drained(ns).await;
    })
    .await;
}

#[tokio::test]
async fn install_method_works_and_leaves_nothing() {
    in_background(remove_all).await;
    let tried = AssertUnwindSafe(async {
        for (name, method) in ALL {
            works_and_leaves_nothing(name, method).await;
        }
    });
    let tried = tried.catch_unwind().await;
    in_background(remove_all).await;
    in_background(|| InstallMethod::Chart(&[]).install()).await;
    tried.unwrap_or_else(|panic| resume_unwind(panic));
}
