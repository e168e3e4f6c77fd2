//! Each method of installing: a Job completes, the certificate is renewed or the release upgraded under a stream of pod
//! creations, and it is removed without a trace. Removes the installation, and installs it again.

use std::panic::{AssertUnwindSafe, resume_unwind};

use e2e::admission::{expiries, until_drained, while_pods_are_created};
use e2e::cluster::{CONFIGURATIONS, MESH, OPT_IN};
use e2e::command::{in_background, printed, run};
use e2e::install_methods::{
    ALL, BINARY, InstallMethod, delete_configurations, helm, leftover_objects, remove_all, upgrade,
};
use e2e::kubectl::kubectl;
use e2e::manifests::{job, pod, pod_spec, shell};
use e2e::tenancy::{TENANT, binding, name_accounts, until_bound};
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
    let mut tenant = None;
    match name {
        "cert-manager" => renew_by_cert_manager(ns).await,
        "helm" => {
            test_and_upgrade_the_release(ns).await;
            change_the_certificate(ns).await;
            change_the_profile(ns).await;
            tenant = Some(tenant_of_the_release(ns).await);
        }
        _ => {}
    }
    in_background(move || method.remove()).await;
    if let Some(tenant) = tenant {
        assert!(tenant.find(&binding()).await.is_none(), "the binding of a tenant is left");
    }
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
            upgrade(&["--timeout=2m", "--set=log.format=json"]);
            helm(&["rollback", "istio-aux", "1", "--wait", "--timeout=2m"])
        })
        .await;
        until_drained(ns).await;
    })
    .await;
}

/// Upgrades the release with another value, as often as asked, waits until `istio-aux check` has no problem, and runs a Job.
async fn upgrade_to(ns: &Namespace, value: &'static str, times: usize) {
    let set = format!("--set={value}");
    in_background(move || {
        for _ in 0..times {
            upgrade(&["--timeout=2m", &set]);
        }
        printed(&run(BINARY, &["check", "--wait", "--timeout=2m"], ""))
    })
    .await;
    let name = format!("work-{}", value.replace('=', "-"));
    ns.create_object(job(&name, &pod_spec("Never", &[shell("main", "true")]))).await;
    ns.until_complete(&name).await;
}

/// Returns the values of a field of both webhook configurations, without the empty ones.
fn of_configurations(field: &str) -> String {
    let columns = format!("--output=jsonpath={{.items[*].{field}}}");
    kubectl(&["get", "mutatingwebhookconfiguration", "--selector=app.kubernetes.io/name=istio-aux", &columns])
}

/// Goes to a certificate of cert-manager's and back, as docs/troubleshooting.md says: by the same upgrade twice.
async fn change_the_certificate(ns: &Namespace) {
    let injected = r"metadata.annotations.cert-manager\.io/inject-ca-from";
    upgrade_to(ns, "certificate.from=cert-manager", 2).await;
    assert_eq!(of_configurations(injected), "istio-aux/istio-aux istio-aux/istio-aux");
    upgrade_to(ns, "certificate.from=self-signed", 2).await;
    assert_eq!(of_configurations(injected), "");
}

/// Goes to the policy profile and back, as docs/policy.md says.
async fn change_the_profile(ns: &Namespace) {
    in_background(delete_configurations).await;
    upgrade_to(ns, "profile=policy", 1).await;
    assert_eq!(of_configurations("metadata.name"), "");
    assert!(helm(&["test", "istio-aux"]).contains("Succeeded"), "the chart's own test of the policy");
    upgrade_to(ns, "profile=webhook", 1).await;
    assert_eq!(of_configurations("metadata.name"), CONFIGURATIONS.join(" "));
}

/// Switches the tenancy controller on, and returns a namespace that has its binding.
async fn tenant_of_the_release(ns: &Namespace) -> Namespace {
    upgrade_to(ns, "tenancy.enabled=true", 1).await;
    let tenant = scenario("install-tenant", &[TENANT]).await;
    name_accounts(&tenant, "default");
    until_bound(&tenant).await;
    tenant
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
