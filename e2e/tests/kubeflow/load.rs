//! Fifty trials of Katib and fifty workflows of Argo, five at a time: none hangs, and none loses its metric or output. `LOAD=yes`.

use std::time::{Duration, Instant};

use e2e::cluster::{MESH, OPT_IN};
use e2e::harness::{Group, Need};
use e2e::kubeflow::argo::{self, executor_rights, three_steps};
use e2e::kubeflow::katib::{COLLECT_METRICS, experiment, label_of, metric_of, training_of, trial_job};
use e2e::{Namespace, PodView, group, has_condition, scenario};
use futures::{StreamExt, stream};
use serde_json::json;

/// Takes minutes.
const LOAD: Need = Need::Variable("LOAD");

/// Returns the test of Katib.
pub(crate) fn group_of_katib() -> Group {
    group!("katib-load", &[LOAD, Need::Kind("experiments.kubeflow.org")], [fifty_trials_succeed_with_their_metrics])
}

/// Returns the test of Argo.
pub(crate) fn group_of_argo() -> Group {
    group!("argo-load", &[LOAD, Need::Kind("workflows.argoproj.io")], [fifty_workflows_end_with_their_outputs])
}

const ALL: u32 = 50;
const AT_A_TIME: u32 = 5;
const LIMIT: Duration = Duration::from_mins(25);

async fn fifty_trials_succeed_with_their_metrics() {
    scenario("trials", &[MESH, OPT_IN, COLLECT_METRICS], async |ns: &Namespace| {
        let began = Instant::now();
        let tune = experiment("tune", ALL, AT_A_TIME, &trial_job("Never", &training_of(5)));
        ns.create_object(tune.clone()).await;
        let ended = async || {
            let now = ns.get(&tune).await;
            (has_condition(&now, "Succeeded") || has_condition(&now, "Failed")).then_some(now)
        };
        let ended = ns.until_within(LIMIT, "the experiment to end", ended).await;
        assert!(has_condition(&ended, "Succeeded"), "{}", ended["status"]);
        let trial = json!({"apiVersion": "kubeflow.org/v1beta1", "kind": "Trial"});
        let trials = ns.list(&trial, &label_of("tune")).await;
        let succeeded = trials.iter().filter(|trial| has_condition(trial, "Succeeded")).count();
        let with_metric = trials.iter().filter(|trial| metric_of(trial).is_some()).count();
        println!(
            "{} trials, {succeeded} succeeded, {with_metric} with their metric, {:?}",
            trials.len(),
            began.elapsed()
        );
        assert_eq!((succeeded, with_metric), (50, 50));
    })
    .await;
}

/// Runs a workflow to its end, and returns how long it took, or its phase where it did not succeed.
async fn run(ns: &Namespace, name: String) -> Result<Duration, String> {
    let began = Instant::now();
    let workflow = three_steps(&name);
    ns.create_object(workflow.clone()).await;
    let ended = async || Some(ns.get(&workflow).await).filter(|now| argo::final_phase(now).is_some());
    let ended = ns.until_within(LIMIT, &format!("workflow {name} to end"), ended).await;
    let all_ended = async || {
        let pods = ns.pods_with(&argo::label_of(&name)).await;
        pods.iter().all(|pod| PodView(pod).final_phase().is_some()).then_some(())
    };
    ns.until_within(LIMIT, &format!("the pods of workflow {name} to end"), all_ended).await;
    let intact = argo::output(&ended, "second", "word") == Some(name.as_str());
    match argo::final_phase(&ended) {
        Some("Succeeded") if intact => Ok(began.elapsed()),
        phase => Err(format!("{name}: {phase:?}, {}", ended["status"]["message"])),
    }
}

async fn fifty_workflows_end_with_their_outputs() {
    scenario("workflows", &[MESH, OPT_IN], async |ns: &Namespace| {
        ns.create_objects(executor_rights()).await;
        let began = Instant::now();
        let all = stream::iter(0..ALL).map(|number| run(ns, format!("flow-{number}")));
        let results: Vec<_> = all.buffer_unordered(AT_A_TIME as usize).collect().await;
        let (well, ill): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        let mut times: Vec<Duration> = well.into_iter().flatten().collect();
        times.sort();
        println!(
            "{} workflows succeeded in {:?}: {:?} to {:?} each",
            times.len(),
            began.elapsed(),
            times.first(),
            times.last()
        );
        assert!(ill.is_empty(), "{ill:#?}");
    })
    .await;
}
