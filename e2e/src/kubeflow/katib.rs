//! Katib's experiments: their trials are Jobs of one container, `training`, unless said otherwise.

use serde_json::{Value, json};

use crate::cluster::Label;
use crate::manifests::shell;

/// Has Katib add its metrics collectors to the trials of a namespace.
pub const COLLECT_METRICS: Label = ("katib.kubeflow.org/metrics-collector-injection", "enabled");

/// The name of the container that trains.
pub const TRAINING: &str = "training";

/// The metric that trials report.
pub const METRIC: &str = "score";

/// Returns a training that takes as many seconds and prints its metric.
pub fn training_of(seconds: u32) -> String {
    format!("echo training; sleep {seconds}; echo {METRIC}=${{trialParameters.rate}}")
}

/// Returns a trial's Job.
pub fn trial_job(restart_policy: &str, script: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "spec": {"backoffLimit": 0, "template": {"spec": {
            "restartPolicy": restart_policy, "terminationGracePeriodSeconds": 1,
            "containers": [shell(TRAINING, script)],
        }}},
    })
}

/// Returns an experiment's name in a namespace. Katib's suggestions see the trials of experiments of the same name in all
/// namespaces.
pub fn name_in(namespace: &str, name: &str) -> String {
    format!("{name}-{}", namespace.rsplit('-').next().unwrap_or_default())
}

/// Returns an experiment of so many trials, so many at a time, whose parameter `rate` is chosen by sobol and whose metric is
/// read from the standard output.
pub fn experiment(name: &str, trials: u32, at_a_time: u32, trial: &Value) -> Value {
    json!({
        "apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "metadata": {"name": name},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": METRIC},
            "algorithm": {"algorithmName": "sobol"},
            "parallelTrialCount": at_a_time, "maxTrialCount": trials, "maxFailedTrialCount": 0,
            "parameters": [
                {"name": "rate", "parameterType": "double", "feasibleSpace": {"min": "0.1", "max": "0.9"}},
            ],
            "trialTemplate": {
                "primaryContainerName": TRAINING,
                "trialParameters": [{"name": "rate", "reference": "rate", "description": "the learning rate"}],
                "trialSpec": trial,
            },
        },
    })
}

/// Returns the label of an experiment's trials and of their pods.
pub fn label_of(experiment: &str) -> String {
    format!("katib.kubeflow.org/experiment={experiment}")
}

/// Returns the latest value of a trial's metric, where Katib has one.
pub fn metric_of(trial: &Value) -> Option<f64> {
    let metrics = trial["status"]["observation"]["metrics"].as_array()?;
    let metric = metrics.iter().find(|metric| metric["name"] == METRIC)?;
    metric["latest"].as_str()?.parse().ok()
}
