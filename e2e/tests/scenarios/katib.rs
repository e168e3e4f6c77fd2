//! Trials of Katib, with a stand-in for its metrics collector: they end and report their metric through the mesh.

use std::time::Duration;

use contract::names::{KATIB_TRIAL_LABEL, MODE_ANNOTATION, NATIVE_SIDECAR_ANNOTATION, PROXY_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, shell, with_post_start};
use e2e::namespace::name_of;
use e2e::stand_ins::{COLLECTOR, FOUND_TRAINING, INSTANT_TRAINING, TRAINING, programs, trial};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{has_native_sidecars, start_server};

/// Adds a container whose hook delays the collector, the last container, as if its image were pulled.
fn with_late_collector(mut trial: Value) -> Value {
    let slow = with_post_start(shell("slow", "sleep 11"), "sleep 10");
    trial["spec"]["containers"].as_array_mut().expect("they are a list").insert(1, slow);
    trial
}

fn with_native_proxy(trial: Value) -> Value {
    annotated(trial, NATIVE_SIDECAR_ANNOTATION, "true")
}

/// Returns the trial with another value of the collector's option `-w`.
fn waits_for_all(mut trial: Value, value: &str) -> Value {
    let collector = trial["spec"]["containers"].as_array_mut().and_then(|containers| containers.last_mut());
    let args = collector.and_then(|collector| collector["args"].as_array_mut());
    args.expect("the collector has arguments").push(json!(format!("-w={value}")));
    trial
}

/// Returns the trial without the label by which istio-aux knows it.
fn unlabeled(mut trial: Value) -> Value {
    trial["metadata"]["labels"].as_object_mut().expect("it has labels").remove(KATIB_TRIAL_LABEL);
    trial
}

/// Returns the trial without the mark by which the collector knows the training: Katib does not mark it for a collector of kind Custom.
fn unmarked(mut trial: Value, training: &str) -> Value {
    trial["spec"]["containers"][0]["args"] = json!([training]);
    trial
}

/// Runs trials, and asserts that this container of each runs on after the training's end.
async fn hang(ns: &Namespace, trials: &[(Value, &str)]) {
    ns.create_objects(trials.iter().map(|(trial, _)| trial.clone())).await;
    let hangs = |pod: PodView, container: &str| pod.exit_code(TRAINING) == Some(0) && pod.runs(container);
    for (trial, container) in trials {
        let what = format!("the training's end, and not that of {container},");
        ns.pod_until(name_of(trial), &what, |pod| hangs(PodView(pod), container).then_some(())).await;
    }
    ns.holds_for(Duration::from_secs(20), "training ended, the other container runs", async || {
        let mut all = true;
        for (trial, container) in trials {
            all &= hangs(PodView(&ns.pod(name_of(trial)).await), container);
        }
        all
    })
    .await;
}

#[tokio::test]
async fn control_trials_in_the_mesh_alone_do_not_end() {
    let ns = &scenario("control-trials", &[MESH]).await;
    start_server(ns).await;
    ns.create_object(programs()).await;
    // A collector may start before an ordinary proxy. It sees a native one, and waits for it.
    let mut trials = vec![(trial("classic", "Never", FOUND_TRAINING), PROXY_CONTAINER)];
    if has_native_sidecars() {
        trials.push((with_native_proxy(trial("native-proxy", "Never", FOUND_TRAINING)), COLLECTOR));
    }
    hang(ns, &trials).await;
}

#[tokio::test]
async fn collector_without_a_rule_or_a_mark_hangs() {
    let ns = &scenario("control-rules", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    ns.create_object(programs()).await;
    // The user's own option stands: the rule that disables it is off.
    let waiting = waits_for_all(trial("waits-for-all", "Never", FOUND_TRAINING), "true");
    // A training that has ended before its collector looks, without the rule that delays it.
    let instant = waits_for_all(unlabeled(with_late_collector(trial("instant", "Never", INSTANT_TRAINING))), "false");
    let custom = unmarked(trial("custom", "Never", ""), FOUND_TRAINING);
    hang(ns, &[(waiting, COLLECTOR), (instant, COLLECTOR), (custom, COLLECTOR)]).await;
}

#[tokio::test]
async fn trials_end_and_report_their_metric() {
    let ns = &scenario("trials", &[MESH, OPT_IN]).await;
    start_server(ns).await;
    ns.create_object(programs()).await;
    let mut trials = vec![
        trial("never", "Never", FOUND_TRAINING),
        trial("on-failure", "OnFailure", FOUND_TRAINING),
        trial("instant", "Never", INSTANT_TRAINING),
        with_late_collector(trial("late-collector", "Never", INSTANT_TRAINING)),
        annotated(trial("mode-proxy", "Never", INSTANT_TRAINING), MODE_ANNOTATION, "proxy"),
    ];
    if has_native_sidecars() {
        trials.push(with_native_proxy(trial("native-proxy", "Never", FOUND_TRAINING)));
    }
    ns.create_objects(trials.iter().cloned()).await;
    for trial in &trials {
        let name = name_of(trial);
        let pod = ns.until_ended(name, "Succeeded").await;
        let log = ns.logs(name, COLLECTOR).await;
        assert!(log.contains("reported score=0.5"), "{name}: {log}");
        assert_eq!(PodView(&pod).restarts(PROXY_CONTAINER), Some(0), "{name}");
    }
}
