//! Jobs of Kubernetes and of Kubeflow's components: what they make completes with istio-aux, and hangs without. `control_` marks
//! the tests that show the failure. Components that the cluster does not have are listed as not run.

mod argo;
mod jobs;
mod jobset;
mod katib;
mod profiles;
mod siblings;
mod training;

use std::process::ExitCode;
use std::time::Duration;

use e2e::harness::Need::{self, Kind, Variable};
use e2e::harness::group;
use e2e::{Namespace, PodView, has_condition};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

const TF_JOBS: Need = Kind("tfjobs.kubeflow.org");
const PY_TORCH_JOBS: Need = Kind("pytorchjobs.kubeflow.org");
const JOB_SETS: Need = Kind("jobsets.jobset.x-k8s.io");
const TRAIN_JOBS: Need = Kind("trainjobs.trainer.kubeflow.org");
const EXPERIMENTS: Need = Kind("experiments.kubeflow.org");
const WORKFLOWS: Need = Kind("workflows.argoproj.io");
const PROFILES: Need = Kind("profiles.kubeflow.org");
const POD_DEFAULTS: Need = Kind("poddefaults.kubeflow.org");
const PYTHON: Need = Variable(e2e::manifests::PYTHON_IMAGE);
const S3: Need = Variable(argo::S3_IMAGE);

/// Each group with its needs and its tests.
#[rustfmt::skip]
fn main() -> ExitCode {
    e2e::harness::run_groups(vec![
        group!("jobs", &[], [
            jobs::control_jobs_in_the_mesh_alone_do_not_end, jobs::every_policy_of_a_job_takes_effect,
            jobs::control_cron_job_in_the_mesh_alone_stays_active, jobs::cron_job_succeeds,
        ]),
        group!("siblings", &[], [
            siblings::control_cloud_sql_proxy_keeps_a_job_of_the_mesh, siblings::cloud_sql_proxy_is_asked_to_quit,
            siblings::log_shipper_without_endpoint_keeps_the_pod,
        ]),
        group!("tf-jobs", &[TF_JOBS], [
            training::control_tf_job_in_the_mesh_alone_stays_not_ready, training::tf_job_succeeds,
            training::control_tf_job_in_the_mesh_alone_is_not_cleaned_up, training::clean_pod_policy_deletes_its_pods,
            training::control_failed_tf_jobs_in_the_mesh_alone_run_on, training::exit_code_policy_retries_retryable_codes,
        ]),
        group!("py-torch-jobs", &[PY_TORCH_JOBS, PYTHON], [
            training::control_py_torch_job_in_the_mesh_alone_does_not_end, training::py_torch_job_trains_through_the_mesh,
            training::workers_of_a_py_torch_job_are_refused_under_restricted,
        ]),
        group!("job-sets", &[JOB_SETS], [
            jobset::control_job_set_in_the_mesh_alone_does_not_complete, jobset::job_set_completes_with_its_driver,
            jobset::job_set_is_restarted_after_a_failure,
        ]),
        group!("trainer", &[TRAIN_JOBS], [
            jobset::control_train_job_in_the_mesh_alone_does_not_complete, jobset::train_job_completes,
        ]),
        group!("katib", &[EXPERIMENTS, TF_JOBS], [
            katib::control_trials_in_the_mesh_alone_do_not_end, katib::trials_end_with_their_metrics,
        ]),
        group!("katib-argo", &[EXPERIMENTS, WORKFLOWS], [katib::workflow_trial_ends_with_its_metrics]),
        group!("argo", &[WORKFLOWS], [
            argo::control_step_in_the_mesh_alone_runs_before_its_proxy, argo::every_kind_of_step_ends_with_its_outputs,
        ]),
        group!("argo-artifacts", &[WORKFLOWS, S3], [
            argo::control_upload_in_the_mesh_alone_loses_its_proxy, argo::artifact_is_uploaded_before_the_proxy_ends,
        ]),
        group!("profiles", &[PROFILES, POD_DEFAULTS, EXPERIMENTS], [profiles::profiles_pods_reach_pipelines_and_own_services]),
    ])
}

/// Mounts a file `/gate/open` into the first container of pods that are created after [`open_gate`].
fn behind_gate(mut spec: Value) -> Value {
    spec["volumes"] = json!([{"name": "gate", "configMap": {"name": "gate", "optional": true}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "gate", "mountPath": "/gate"}]);
    spec
}

async fn open_gate(ns: &Namespace) {
    let gate = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gate"}, "data": {"open": "yes"}});
    ns.create_object(gate).await;
}

/// Asserts that a pod with a label hangs when its payload has ended, and that its owner does not get a condition.
async fn hangs_without(ns: &Namespace, owner: &Value, condition: &str, label: &str, payload: &str) {
    let stuck = |pod: PodView| pod.is_stuck(payload);
    ns.until_a_pod(label, "the payload's end", stuck).await;
    ns.holds_for(Duration::from_secs(15), "the payload has ended, and its owner runs on", async || {
        any(&ns.pods_with(label).await, stuck) && !has_condition(&ns.get(owner).await, condition)
    })
    .await;
}

/// Returns true if one of the pods is as described.
fn any(pods: &[Pod], is_so: impl Fn(PodView) -> bool) -> bool {
    pods.iter().any(|pod| is_so(PodView(pod)))
}
