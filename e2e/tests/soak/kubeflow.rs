//! Argo's workflows and Katib's trials.

use e2e::has_condition;
use e2e::kubeflow::{argo, katib};
use serde_json::json;

use crate::{Soak, TRIALS_AT_A_TIME};

/// An experiment's pods are kept until it has ended, so one does not have all trials.
const TRIALS_OF_AN_EXPERIMENT: usize = 30;

/// Runs a workflow of three steps to its end, and looks at what it hands on.
pub(crate) async fn run_workflow(soak: &Soak<'_>, number: usize) -> Result<(), String> {
    let name = format!("flow-{number}");
    let workflow = argo::three_steps(&name);
    let ended = soak.run(&workflow, |workflow| argo::final_phase(workflow).is_some()).await?;
    let is_well =
        argo::final_phase(&ended) == Some("Succeeded") && argo::output(&ended, "second", "word") == Some(&name);
    if soak.ended_pods(&argo::label_of(&name)).await?.is_some() && !is_well {
        return Err(format!("{name}: {}", ended["status"]));
    }
    soak.delete(&workflow).await;
    Ok(())
}

/// Runs trials to their ends, one experiment after the other. Returns what was wrong.
pub(crate) async fn run_trials(soak: &Soak<'_>, trials: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for first in (0..trials).step_by(TRIALS_OF_AN_EXPERIMENT) {
        let count = TRIALS_OF_AN_EXPERIMENT.min(trials - first);
        wrong.extend(run_experiment(soak, first, count).await.unwrap_or_else(|stuck| vec![stuck]));
    }
    wrong
}

async fn run_experiment(soak: &Soak<'_>, first: usize, count: usize) -> Result<Vec<String>, String> {
    let name = katib::name_in(soak.ns.name(), &format!("tune-{first}"));
    let trial = katib::trial_job("Never", &katib::training_of(2));
    let number = u32::try_from(count).expect("an experiment has few trials");
    let mut experiment = katib::experiment(&name, number, TRIALS_AT_A_TIME, &trial);
    experiment["spec"]["maxFailedTrialCount"] = json!(count);
    experiment["spec"]["trialTemplate"]["retain"] = json!(true);
    soak.run(&experiment, |now| has_condition(now, "Succeeded") || has_condition(now, "Failed")).await?;
    let mut wrong = Vec::new();
    let like = json!({"apiVersion": "kubeflow.org/v1beta1", "kind": "Trial"});
    let trials = soak.list(&like, &katib::label_of(&name)).await;
    if trials.len() != count {
        wrong.push(format!("{name} has {} trials", trials.len()));
    }
    for trial in trials {
        let is_well = has_condition(&trial, "Succeeded") && katib::metric_of(&trial).is_some();
        let job = trial["metadata"]["name"].as_str().unwrap_or_default();
        match soak.ended_pods(&format!("batch.kubernetes.io/job-name={job}")).await {
            Ok(Some(_)) if !is_well => wrong.push(format!("{job}: {}", trial["status"])),
            Ok(_) => (),
            Err(stuck) => wrong.push(stuck),
        }
    }
    soak.delete(&experiment).await;
    Ok(wrong)
}
