//! Katib: trials end, however their training does, and report their metrics.

use std::time::Duration;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubeflow::argo;
use e2e::kubeflow::katib::{
    COLLECT_METRICS, METRIC, TRAINING, experiment, label_of, metric_of, name_in, training_of, trial_job,
};
use e2e::manifests::{annotated, shell, tf_job, with_post_start};
use e2e::namespace::name_of;
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::{Value, json};

use crate::any;

/// An experiment, the condition in which it ends, and how many of its trials succeed.
struct Case {
    experiment: Value,
    condition: &'static str,
    succeeded: usize,
}

impl Case {
    fn new(name: &str, trial: &Value) -> Self {
        Self { experiment: experiment(name, 1, 1, trial), condition: "Succeeded", succeeded: 1 }
    }

    fn with(mut self, pointer: &str, value: Value) -> Self {
        *self.experiment.pointer_mut(pointer).expect("an experiment has it") = value;
        self
    }
}

/// Returns a training that has ended before anything else of the pod has begun to look.
fn instant() -> String {
    format!("echo {METRIC}=${{trialParameters.rate}}")
}

fn cases(ns: &Namespace) -> Vec<Case> {
    let mut cases = plain_cases();
    for case in &mut cases {
        let name = name_in(ns.name(), name_of(&case.experiment));
        case.experiment["metadata"]["name"] = json!(name);
    }
    cases
}

fn plain_cases() -> Vec<Case> {
    let quick = trial_job("Never", &instant());
    let parallel = experiment("parallel", 4, 3, &trial_job("Never", &training_of(4)));
    let failing = experiment("failing", 2, 2, &trial_job("Never", "echo ${trialParameters.rate}; sleep 2; exit 1"));
    vec![
        Case::new("never", &trial_job("Never", &training_of(8))),
        Case::new("on-failure", &trial_job("OnFailure", &training_of(8))),
        Case::new("instant", &quick),
        Case::new("late-collector", &with_late_collector(quick)),
        with_file_collector(Case::new("file", &trial_job("Never", &format!("{} > /metrics/log", training_of(4))))),
        Case::new("native-proxy", &with_native_proxy(trial_job("Never", &training_of(4)))),
        by_cmaes(),
        Case { experiment: parallel, condition: "Succeeded", succeeded: 4 },
        Case { experiment: failing, condition: "Failed", succeeded: 0 },
        Case::new("tfjob", &tf_job_trial()).with("/spec/trialTemplate/primaryContainerName", json!("tensorflow")),
    ]
}

/// Returns an experiment of two parameters, which cmaes needs.
fn by_cmaes() -> Case {
    let training = format!("echo momentum is ${{trialParameters.momentum}}; {}", training_of(4));
    let names = ["rate", "momentum"];
    let range =
        |name: &str| json!({"name": name, "parameterType": "double", "feasibleSpace": {"min": "0.1", "max": "0.9"}});
    let reference = |name: &str| json!({"name": name, "reference": name, "description": "a parameter"});
    Case::new("cmaes", &trial_job("Never", &training))
        .with("/spec/algorithm/algorithmName", json!("cmaes"))
        .with("/spec/parameters", json!(names.map(range)))
        .with("/spec/trialTemplate/trialParameters", json!(names.map(reference)))
}

/// Adds a container whose hook delays the collector, the last container, as if its image were pulled.
fn with_late_collector(mut trial: Value) -> Value {
    let slow = with_post_start(shell("slow", "sleep 13"), "sleep 12");
    let containers = trial.pointer_mut("/spec/template/spec/containers").expect("a Job has containers");
    containers.as_array_mut().expect("they are a list").push(slow);
    trial
}

fn with_file_collector(mut case: Case) -> Case {
    case.experiment["spec"]["metricsCollectorSpec"] = json!({
        "collector": {"kind": "File"},
        "source": {"fileSystemPath": {"kind": "File", "format": "TEXT", "path": "/metrics/log"}},
    });
    case
}

fn with_native_proxy(trial: Value) -> Value {
    annotated(trial, "sidecar.istio.io/nativeSidecar", "true")
}

fn tf_job_trial() -> Value {
    let mut trial = tf_job("", 1, "OnFailure", &training_of(4));
    trial.as_object_mut().expect("it is an object").remove("metadata");
    trial
}

/// Returns the trials of an experiment.
async fn trials_of(ns: &Namespace, experiment: &str) -> Vec<Value> {
    let trial = json!({"apiVersion": "kubeflow.org/v1beta1", "kind": "Trial"});
    ns.list(&trial, &label_of(experiment)).await
}

/// Returns what is wrong with an experiment and its trials that have ended.
fn complaint(case: &Case, ended: &Value, trials: &[Value]) -> Option<String> {
    let name = name_of(&case.experiment);
    let succeeded: Vec<_> = trials.iter().filter(|trial| has_condition(trial, "Succeeded")).collect();
    let without_metric = succeeded.iter().filter(|trial| metric_of(trial).is_none()).count();
    if !has_condition(ended, case.condition) {
        return Some(format!("{name} is not {}: {}", case.condition, ended["status"]["conditions"]));
    }
    (succeeded.len() != case.succeeded || without_metric > 0).then(|| {
        let count = succeeded.len();
        format!("{name}: {count} trials succeeded and not {}, {without_metric} without their metric", case.succeeded)
    })
}

async fn run(ns: &Namespace, cases: &[Case]) {
    ns.create_objects(cases.iter().map(|case| case.experiment.clone())).await;
    let mut complaints = Vec::new();
    for case in cases {
        let ended = ns.until_condition(&case.experiment, &["Succeeded", "Failed"]).await;
        complaints.extend(complaint(case, &ended, &trials_of(ns, name_of(&case.experiment)).await));
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

pub(crate) async fn control_trials_in_the_mesh_alone_do_not_end() {
    let ns = &scenario("control-katib", &[MESH, COLLECT_METRICS]).await;
    let names = ["classic", "native-proxy"].map(|name| name_in(ns.name(), name));
    let trial = trial_job("Never", &training_of(8));
    ns.create_object(experiment(&names[0], 1, 1, &trial)).await;
    ns.create_object(experiment(&names[1], 1, 1, &with_native_proxy(trial))).await;
    let trained = |pod: PodView| pod.exit_code(TRAINING) == Some(0) && pod.runs(PROXY_CONTAINER);
    for name in &names {
        ns.until_a_pod(&label_of(name), "the training's end", trained).await;
    }
    ns.holds_for(Duration::from_secs(20), "training ended, proxy runs, trial not succeeded", async || {
        let mut hang = true;
        for name in &names {
            let succeeded = trials_of(ns, name).await.iter().any(|trial| has_condition(trial, "Succeeded"));
            hang &= any(&ns.pods_with(&label_of(name)).await, trained) && !succeeded;
        }
        hang
    })
    .await;
}

pub(crate) async fn trials_end_with_their_metrics() {
    let ns = &scenario("katib", &[MESH, OPT_IN, COLLECT_METRICS]).await;
    run(ns, &cases(ns)).await;
}

/// Returns a workflow of one step, whose container trains.
fn workflow_trial() -> Value {
    let mut step = argo::step(TRAINING, &training_of(15));
    step["metadata"] = json!({"labels": {"trains": "yes"}});
    let mut trial = argo::workflow("", &[step]);
    trial.as_object_mut().expect("it is an object").remove("metadata");
    trial
}

pub(crate) async fn workflow_trial_ends_with_its_metrics() {
    let ns = &scenario("katib-argo", &[MESH, OPT_IN, COLLECT_METRICS]).await;
    ns.create_objects(argo::executor_rights()).await;
    let mut case = Case::new("workflow", &workflow_trial());
    let template = &mut case.experiment["spec"]["trialTemplate"];
    template["primaryContainerName"] = json!("main");
    template["primaryPodLabels"] = json!({"trains": "yes"});
    template["successCondition"] = json!(r#"status.[@this].#(phase=="Succeeded")#"#);
    template["failureCondition"] = json!(r#"status.[@this].#(phase=="Failed")#"#);
    run(ns, &[case]).await;
}
