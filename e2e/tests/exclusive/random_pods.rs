//! Policy and webhook make the same of random pods: `RANDOM_PODS` of them, 100 by default. A pod in which they differ is printed, for
//! a row in `inject/tests/cases.yaml`.

use std::sync::atomic::{AtomicUsize, Ordering};

use contract::names::SHIM_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{container, pod, pod_spec, shell};
use e2e::policies::{by_policy, install_policies, wait_until_effective};
use e2e::scenario;
use futures::{StreamExt, stream};
use json_patch::{diff, merge};
use serde_json::{Value, json};

use crate::policy::{dry_run, status, without_warnings};

const AT_A_TIME: usize = 4;

/// Chooses by a sequence that is the same in each run (`SplitMix64`).
struct Choice(u64);

impl Choice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap_or_default() % count
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Merges one of these into an object, or nothing as often as `none` says.
    fn merge_one(&mut self, object: &mut Value, none: usize, all: &[Value]) {
        let chosen = self.below(all.len() + none);
        if let Some(one) = all.get(chosen) {
            merge(object, one);
        }
    }
}

fn a_container(choice: &mut Choice, name: &str) -> Value {
    let mut one = container(name, &["sh", "-c", "true"]);
    let probe = json!({"exec": {"command": ["true"]}});
    let fixed = json!({"cpu": "100m", "memory": "64Mi"});
    choice.merge_one(&mut one, 2, &[json!({"command": null}), json!({"args": ["x"]}), json!({"args": ["-s-db", "d"]})]);
    choice.merge_one(&mut one, 3, &[json!({"livenessProbe": probe}), json!({"startupProbe": probe})]);
    choice.merge_one(
        &mut one,
        2,
        &[
            json!({"resources": {"requests": fixed, "limits": fixed}}),
            json!({"resources": {"limits": {"cpu": "1"}}}),
            json!({"resources": null}),
        ],
    );
    choice.merge_one(
        &mut one,
        6,
        &[
            json!({"restartPolicy": "Never"}),
            json!({"restartPolicy": "OnFailure"}),
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}),
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}]}),
        ],
    );
    one
}

fn annotate(choice: &mut Choice, one: &mut Value) {
    let note = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let modes = ["auto", "native", "proxy", "status", "istio", "hold", "off", "other"];
    choice.merge_one(one, 8, &modes.map(|mode| note("istio-aux.io/mode", mode)));
    choice.merge_one(one, 4, &["main", "main,helper", "nobody", ""].map(|names| note("istio-aux.io/wait-for", names)));
    choice.merge_one(
        one,
        3,
        &["http://127.0.0.1:9091/quit", "http://example.com/"].map(|url| note("istio-aux.io/quit", url)),
    );
    choice.merge_one(
        one,
        3,
        &["concurrency: 2", "{\"concurrency\": 2}", "holdApplicationUntilProxyStarts: false"]
            .map(|config| note("proxy.istio.io/config", config)),
    );
    choice.merge_one(one, 4, &["0", "15777", "x"].map(|port| note("status.sidecar.istio.io/port", port)));
    choice.merge_one(
        one,
        4,
        &["memory=8Mi,cpu=2m", "memory=lots"].map(|text| note("istio-aux.io/shim-requests", text)),
    );
}

fn random_pod(choice: &mut Choice, number: usize) -> Value {
    let mut names = vec!["main", "metrics", "metrics-logger-and-collector", "helper"];
    let count = 1 + choice.below(names.len());
    let containers: Vec<Value> = (0..count)
        .map(|_| {
            let name = names.remove(choice.below(names.len()));
            a_container(choice, name)
        })
        .collect();
    let mut one = pod(&format!("random-{number}"), &pod_spec("Never", &containers));
    // Its volume has a random name.
    one["spec"]["automountServiceAccountToken"] = json!(false);
    one["spec"]["restartPolicy"] = json!(choice.of(&["Never", "OnFailure", "Always"]));
    let mut sidecar = shell("logs", "sleep 1");
    sidecar["restartPolicy"] = json!("Always");
    choice.merge_one(
        &mut one,
        2,
        &[
            json!({"spec": {"initContainers": [shell("prepare", "true")]}}),
            json!({"spec": {"initContainers": [sidecar]}}),
        ],
    );
    let spec = |fields: Value| json!({"spec": fields});
    choice.merge_one(
        &mut one,
        4,
        &[
            spec(json!({"shareProcessNamespace": false})),
            spec(json!({"shareProcessNamespace": true})),
            spec(json!({"hostPID": true})),
            spec(json!({"hostNetwork": true})),
            spec(json!({"volumes": [{"name": "data", "emptyDir": {}}]})),
        ],
    );
    let label = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    choice.merge_one(
        &mut one,
        5,
        &[
            label("istio-aux.io/injection", "disabled"),
            label("sidecar.istio.io/inject", "false"),
            label("katib.kubeflow.org/trial", "t"),
            label("workflows.argoproj.io/workflow", "w"),
        ],
    );
    annotate(choice, &mut one);
    if one["spec"]["restartPolicy"] == "Always" {
        // The webhook sees a long-running pod before Istio's injector only, and a policy after it too.
        let only_after =
            json!({"labels": {"katib.kubeflow.org/trial": null}, "annotations": {"istio-aux.io/mode": null}});
        merge(&mut one["metadata"], &only_after);
    }
    one
}

#[tokio::test]
async fn policy_and_webhook_agree_on_random_pods() {
    let count = std::env::var("RANDOM_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut choice = Choice(1);
    let pods: Vec<Value> = (0..count).map(|number| random_pod(&mut choice, number)).collect();
    let policed = &scenario("random", &[MESH, by_policy("e2e-random")]).await;
    let by_webhook = &scenario("random-webhook", &[MESH, OPT_IN]).await;
    let _installed = install_policies("e2e-random", &[]);
    wait_until_effective(policed, &pod("probe", &pod_spec("Never", &[shell("main", "true")]))).await;
    let with_shim = AtomicUsize::new(0);
    let compared = stream::iter(&pods).map(async |pod| {
        let (webhook, policy) = tokio::join!(dry_run(by_webhook, pod), dry_run(policed, pod));
        // Istio's injector rejects some pods, and so neither decides.
        if webhook.as_str().is_some_and(|refusal| !refusal.contains("sidecar-injector.istio.io")) {
            return Some(format!("{pod}\n  is rejected: {webhook}"));
        }
        let has_shim = webhook.to_string().contains(&format!("\"name\":\"{SHIM_CONTAINER}\""));
        with_shim.fetch_add(usize::from(has_shim), Ordering::Relaxed);
        let webhook = without_warnings(webhook, !status(&policy).is_null());
        let patch = diff(&webhook, &policy);
        (!patch.is_empty()).then(|| format!("{pod}\n  is the policy's after {patch}"))
    });
    let wrong: Vec<String> = compared.buffer_unordered(AT_A_TIME).filter_map(async |wrong| wrong).collect().await;
    let with_shim = with_shim.into_inner();
    println!("{count} random pods: {with_shim} get the shim, {} differ", wrong.len());
    assert!(with_shim > count / 10, "{with_shim} of {count} pods get the shim");
    assert!(wrong.is_empty(), "{} of {count} pods:\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
}
