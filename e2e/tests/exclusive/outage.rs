//! What pods meet while the webhook is unavailable: docs/outages.md has the table.

use std::time::{Duration, Instant};

use contract::names::{
    ENDED_ANNOTATION, INJECTION_LABEL, ISTIO_INJECT, MODE_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER, SHIM_LABEL,
};
use e2e::admission::until_drained;
use e2e::cluster::{CONFIGURATIONS, MESH, OPT_IN};
use e2e::command::{printed, run};
use e2e::install_methods::BINARY;
use e2e::kubectl::kubectl;
use e2e::manifests::{annotated, in_modes, job, pod, pod_spec, shell, tf_job, with_memory};
use e2e::outage::{
    FailingWebhook, IgnoredFailures, NoReplica, SilentReplicas, UntrustedWebhook, WithoutConfigurations, is_trusted,
};
use e2e::stand_ins::step;
use e2e::{Namespace, PodView, scenario};
use futures::future::join_all;
use futures::{StreamExt, stream};
use kube::ResourceExt;
use serde_json::{Value, json};

const PODS: usize = 100;
const AT_A_TIME: usize = 5;

fn completing(name: &str) -> Value {
    pod(name, &pod_spec("Never", &[shell("main", "true")]))
}

/// Returns pods that istio-aux would not end, by what they are.
fn unconcerned() -> Vec<(&'static str, Value)> {
    let with = |key: &str, value: &str| annotated(completing("one"), key, value);
    let mut labelled = completing("one");
    labelled["metadata"]["labels"] = json!({INJECTION_LABEL: "disabled"});
    let mut host_network = completing("one");
    host_network["spec"]["hostNetwork"] = json!(true);
    vec![
        ("without Istio's proxy", with("sidecar.istio.io/inject", "false")),
        ("opted out by the label", labelled),
        ("mode off", with(MODE_ANNOTATION, "off")),
        ("mode hold", with(MODE_ANNOTATION, "hold")),
        ("on the node's network", host_network),
        ("long-running", pod("one", &pod_spec("Always", &[shell("main", "true")]))),
    ]
}

/// Creates pods by dry run. Returns the refusals, and how long the slowest took.
async fn create(ns: &Namespace) -> (Vec<String>, Duration) {
    let created = stream::iter(0..PODS).map(async |number| {
        let began = Instant::now();
        let made = ns.try_dry_run(completing(&format!("pod-{number}"))).await;
        let refusal = match made {
            Ok(pod) => (!pod.to_string().contains(SHIM_CONTAINER)).then(|| format!("no shim: {pod}")),
            Err(error) => Some(error.to_string()),
        };
        (refusal, began.elapsed())
    });
    let (refusals, took): (Vec<_>, Vec<_>) = created.buffer_unordered(AT_A_TIME).unzip().await;
    (refusals.into_iter().flatten().collect(), took.into_iter().max().unwrap_or_default())
}

#[tokio::test]
async fn silent_replica_costs_no_pod() {
    let ns = &scenario("silent-one", &[MESH, OPT_IN]).await;
    until_drained(ns).await;
    // The API server has a connection to one of them, which it uses first.
    for number in [0, 1] {
        let _silent = SilentReplicas::begin(&[number]);
        let (refusals, slowest) = create(ns).await;
        println!("{PODS} pods beside a silent replica: {} refused, the slowest took {slowest:?}", refusals.len());
        assert!(refusals.is_empty(), "{}", refusals.join("\n"));
    }
}

/// Asserts that pods which would not complete are refused with this text, and all others admitted.
async fn refuses_only_what_would_hang(ns: &Namespace, text: &str) {
    let admissions = unconcerned().into_iter().map(async |(case, pod)| {
        let began = Instant::now();
        ns.try_dry_run(pod).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        println!("{case}: admitted in {:?}", began.elapsed());
    });
    join_all(admissions).await;
    let mut labelled = completing("one");
    labelled["metadata"]["labels"] = json!({SHIM_LABEL: "native"});
    for (case, pod) in [("a pod that would not complete", completing("one")), ("one with the shim's label", labelled)] {
        let began = Instant::now();
        let refusal = ns.try_dry_run(pod).await.expect_err("it would not complete").to_string();
        println!("{case}: refused in {:?}", began.elapsed());
        assert!(refusal.contains("require-shim.namespace.istio-aux.io") && refusal.contains(text), "{refusal}");
    }
    assert_checked(ns, text);
}

/// Asserts that the dry run of `istio-aux check` has the API server's words.
fn assert_checked(ns: &Namespace, text: &str) {
    let checked = run(BINARY, &["check", "-n", ns.name(), "-o", "json", "--request-timeout=2m"], "");
    assert_eq!(checked.status.code(), Some(1), "{}", String::from_utf8_lossy(&checked.stderr));
    let findings: Value = serde_json::from_slice(&checked.stdout).expect("it prints JSON");
    let all = findings["findings"].as_array().into_iter().flatten();
    let tried: Vec<_> = all.filter(|one| one["id"] == "dry-run").collect();
    let says = |one: &Value| one["message"].as_str().is_some_and(|said| said.contains(text));
    assert!(!tried.is_empty() && tried.iter().all(|one| one["severity"] == "problem" && says(one)), "{findings:#}");
}

#[tokio::test]
async fn outage_refuses_only_pods_that_would_not_complete() {
    let ns = &scenario("silent-all", &[MESH, OPT_IN]).await;
    until_drained(ns).await;
    {
        let _silent = SilentReplicas::begin(&[0, 1]);
        refuses_only_what_would_hang(ns, "deadline exceeded").await;
    }
    {
        let _away = NoReplica::of_webhook();
        refuses_only_what_would_hang(ns, "failed calling webhook").await;
    }
    ns.try_dry_run(completing("one")).await.expect("the API server reaches a Deployment that is available");
    {
        let _failing = FailingWebhook::begin();
        ns.until("the errors to count", async || ns.try_dry_run(completing("one")).await.err()).await;
        refuses_only_what_would_hang(ns, "could not find the requested resource").await;
    }
    ns.until("a pod to be admitted again", async || ns.try_dry_run(completing("one")).await.ok()).await;
    {
        let _untrusted = UntrustedWebhook::begin();
        ns.until("the other CA to count", async || ns.try_dry_run(completing("one")).await.err()).await;
        refuses_only_what_would_hang(ns, "certificate signed by unknown authority").await;
    }
    ns.until("the webhook to be trusted again", async || is_trusted().then_some(())).await;
    ns.until("a pod to be admitted again", async || ns.try_dry_run(completing("one")).await.ok()).await;
}

/// Waits until a controller reports that the webhook could not be called for a pod of an object of this kind.
async fn until_refused(ns: &Namespace, kind: &str) {
    let selector = format!("--field-selector=involvedObject.kind={kind}");
    let words = ["-n", ns.name(), "get", "events", &selector, "--output=jsonpath={.items[*].message}"];
    let refused = async || kubectl(&words).contains("failed calling webhook \"require-shim").then_some(());
    ns.until(&format!("a pod of the {kind} to be refused"), refused).await;
}

#[tokio::test]
async fn jobs_and_training_jobs_complete_after_an_outage() {
    let ns = &scenario("retried", &[MESH, OPT_IN]).await;
    until_drained(ns).await;
    let training = tf_job("train", 1, "OnFailure", "true");
    {
        let _away = NoReplica::of_webhook();
        ns.create_objects([job("one", &pod_spec("Never", &[shell("main", "true")])), training.clone()]).await;
        until_refused(ns, "Job").await;
        until_refused(ns, "TFJob").await;
        // A client that creates a pod without a controller gets the error.
        let refusal = ns.try_create(step("step")).await.expect_err("it would not complete");
        assert!(refusal.to_string().contains("failed calling webhook"), "{refusal}");
    }
    ns.until_complete("one").await;
    ns.until_condition(&training, &["Succeeded"]).await;
    assert!(!ns.has_pod("step").await, "nobody creates it again");
}

#[tokio::test]
async fn pods_end_once_the_webhook_is_back() {
    // The kubelet's report is rejected while the webhook is away, and repeated.
    let ns = &scenario("ended-away", &[MESH, OPT_IN]).await;
    let modes = ["native", "status"];
    let main = shell("main", "until [ -e /memory/end ]; do sleep 0.2; done");
    ns.create_objects(in_modes(&modes, &with_memory(pod_spec("Never", &[main])))).await;
    for mode in modes {
        ns.pod_until(mode, "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
    }
    let away = NoReplica::of_webhook();
    for mode in modes {
        ns.exec(mode, "main", &["touch", "/memory/end"]);
    }
    // Nobody waits for a report of a pod that has the label only.
    let mut labelled = pod("labelled", &pod_spec("Never", &[shell("main", "sleep 600")]));
    labelled["metadata"]["labels"] = json!({SHIM_LABEL: "native", ISTIO_INJECT: "false"});
    ns.create_object(labelled).await;
    ns.pod_until("labelled", "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
    // The shim has seen the end itself.
    ns.until_ended("native", "Succeeded").await;
    ns.holds_for(Duration::from_secs(6), "the proxy waits for the report", async || {
        PodView(&ns.pod("status").await).runs(PROXY_CONTAINER)
    })
    .await;
    drop(away);
    ns.until_ended("status", "Succeeded").await;
}

#[tokio::test]
async fn pods_of_an_ignored_outage_hang_until_they_are_finished() {
    let ns = &scenario("ignored", &[MESH, OPT_IN]).await;
    until_drained(ns).await;
    let main = shell("main", "until [ -e /memory/end ]; do sleep 0.2; done");
    ns.create_objects(in_modes(&["status"], &with_memory(pod_spec("Never", &[main])))).await;
    ns.pod_until("status", "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
    let names = ["admitted", "status"];
    {
        let _ignored = IgnoredFailures::begin();
        let _away = NoReplica::of_webhook();
        ns.until("its admission", async || ns.try_create(completing("admitted")).await.ok()).await;
        ns.exec("status", "main", &["touch", "/memory/end"]);
        for name in names {
            ns.pod_until(name, "the payload's end", |pod| PodView(pod).is_stuck("main").then_some(())).await;
        }
    }
    let finish =
        |more: &[&str]| printed(&run(BINARY, &[&["finish", "-n", ns.name(), "--all-stuck"], more].concat(), ""));
    ns.until("both to be found", async || {
        let found = finish(&["--dry-run"]);
        names.iter().all(|name| found.contains(name)).then_some(())
    })
    .await;
    let [admitted, status] = [ns.pod("admitted").await, ns.pod("status").await];
    assert_eq!([&admitted, &status].map(|pod| PodView(pod).shim_mode()), [None, Some("status")]);
    assert!(!status.annotations().contains_key(ENDED_ANNOTATION), "its report was lost");
    finish(&["--yes"]);
    for name in names {
        ns.until_ended(name, "Succeeded").await;
    }
}

#[tokio::test]
async fn upgrade_creates_deleted_configurations() {
    let ns = &scenario("deleted", &[MESH, OPT_IN]).await;
    until_drained(ns).await;
    let has_shim =
        async || ns.try_dry_run(completing("one")).await.is_ok_and(|pod| pod.to_string().contains(SHIM_CONTAINER));
    for names in [&CONFIGURATIONS[1..], &CONFIGURATIONS[..]] {
        let without = WithoutConfigurations::begin(names);
        ns.until("a pod without the shim", async || (!has_shim().await).then_some(())).await;
        drop(without);
        ns.until("a pod with the shim", async || has_shim().await.then_some(())).await;
    }
}
