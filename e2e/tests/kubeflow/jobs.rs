//! The policies of Kubernetes' own Jobs. None takes effect while the proxy keeps their pods from ending, and all do with istio-aux.

use std::time::Duration;

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{job, pod_spec, shell};
use e2e::namespace::name_of;
use e2e::{Namespace, PodView, has_condition, scenario};
use serde_json::{Value, json};

use crate::{behind_gate, open_gate};

/// A Job, the condition in which it ends, and what its status then holds: a JSON pointer and the value there.
struct Case {
    job: Value,
    condition: &'static str,
    status: &'static [(&'static str, &'static str)],
}

/// Returns a Job with these fields of its specification beside the pod of one container.
fn job_of(name: &str, script: &str, fields: Value) -> Value {
    let mut job = job(name, &behind_gate(pod_spec("Never", &[shell("main", script)])));
    let mut spec = fields;
    spec["template"] = job["spec"]["template"].take();
    job["spec"] = spec;
    job
}

fn cases() -> Vec<Case> {
    let fail_at_once = json!({"rules": [{
        "action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]},
    }]});
    let ignored = json!({"rules": [{
        "action": "Ignore", "onExitCodes": {"containerName": "main", "operator": "In", "values": [43]},
    }]});
    let first_decides = json!({"rules": [{"succeededIndexes": "0"}]});
    vec![
        Case {
            job: job_of(
                "indexed",
                "sleep $JOB_COMPLETION_INDEX",
                json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3}),
            ),
            condition: "Complete",
            status: &[("/completedIndexes", "0-2")],
        },
        Case {
            job: job_of("fail-job", "sleep 1; exit 42", json!({"backoffLimit": 6, "podFailurePolicy": fail_at_once})),
            condition: "Failed",
            status: &[("/failed", "1")],
        },
        Case {
            // Without the rule the first failure would exceed the limit.
            job: job_of(
                "ignore",
                "test -e /gate/open || exit 43",
                json!({"backoffLimit": 0, "podFailurePolicy": ignored}),
            ),
            condition: "Complete",
            status: &[("/succeeded", "1")],
        },
        Case {
            job: job_of(
                "success-policy",
                "test $JOB_COMPLETION_INDEX = 0 || sleep 900",
                json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2, "successPolicy": first_decides}),
            ),
            condition: "Complete",
            status: &[("/completedIndexes", "0")],
        },
        Case {
            job: job_of(
                "limit-per-index",
                "test $JOB_COMPLETION_INDEX != 1",
                json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimitPerIndex": 0}),
            ),
            condition: "Failed",
            status: &[("/completedIndexes", "0,2"), ("/failedIndexes", "1")],
        },
        Case {
            job: job_of("suspended", "sleep 1", json!({"suspend": true})),
            condition: "Complete",
            status: &[("/succeeded", "1")],
        },
    ]
}

async fn create_all(ns: &Namespace, cases: &[Case]) {
    ns.create_objects(cases.iter().map(|case| case.job.clone())).await;
    let suspended = job_of("suspended", "", json!({}));
    ns.until_condition(&suspended, &["Suspended"]).await;
    ns.patch(&suspended, json!({"spec": {"suspend": false}})).await;
}

/// Returns the label of a Job's pods.
fn pods_of(job: &str) -> String {
    format!("batch.kubernetes.io/job-name={job}")
}

pub(crate) async fn control_jobs_in_the_mesh_alone_do_not_end() {
    let ns = &scenario("control-jobs", &[MESH]).await;
    let cases = cases();
    create_all(ns, &cases).await;
    for case in &cases {
        let stuck = |pod: PodView| pod.terminated("main").is_some() && pod.runs(PROXY_CONTAINER);
        ns.until_a_pod(&pods_of(name_of(&case.job)), "an end of the payload, and not of the proxy,", stuck).await;
    }
    ns.holds_for(Duration::from_secs(15), "no Job has ended", async || {
        for case in &cases {
            let now = ns.get(&case.job).await;
            if has_condition(&now, "Complete") || has_condition(&now, "Failed") {
                return false;
            }
        }
        true
    })
    .await;
}

pub(crate) async fn every_policy_of_a_job_takes_effect() {
    let ns = &scenario("jobs", &[MESH, OPT_IN]).await;
    let cases = cases();
    create_all(ns, &cases).await;
    ns.until_a_pod(&pods_of("ignore"), "the failure", |pod| pod.phase() == "Failed").await;
    open_gate(ns).await;
    let mut complaints = Vec::new();
    for case in &cases {
        let ended = ns.until_condition(&case.job, &["Complete", "Failed"]).await;
        complaints.extend(complaint(case, &ended));
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Returns what is wrong with a Job that has ended.
fn complaint(case: &Case, ended: &Value) -> Option<String> {
    let status = &ended["status"];
    let is_as_told = |(pointer, expected): &(&str, &str)| {
        status
            .pointer(pointer)
            .is_some_and(|value| value.as_str().map_or(value.to_string(), str::to_owned) == *expected)
    };
    let well = has_condition(ended, case.condition) && case.status.iter().all(is_as_told);
    (!well).then(|| format!("{} is not {} with {:?}: {status}", name_of(&case.job), case.condition, case.status))
}

/// Returns a `CronJob` of every minute, and never two at once: without istio-aux the first run is the last.
fn cron_job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "minutely"},
        "spec": {
            "schedule": "* * * * *", "concurrencyPolicy": "Forbid",
            "jobTemplate": {"spec": job("", &pod_spec("OnFailure", &[shell("main", "sleep 1")]))["spec"]},
        },
    })
}

pub(crate) async fn control_cron_job_in_the_mesh_alone_stays_active() {
    let ns = &scenario("control-cron", &[MESH]).await;
    ns.create_object(cron_job()).await;
    ns.until_a_pod("batch.kubernetes.io/job-name", "the payload's end", |pod| pod.is_stuck("main")).await;
    ns.holds_for(Duration::from_secs(15), "its run is active", async || {
        let status = ns.get(&cron_job()).await["status"].clone();
        status["active"].as_array().is_some_and(|active| active.len() == 1) && status["lastSuccessfulTime"].is_null()
    })
    .await;
}

pub(crate) async fn cron_job_succeeds() {
    let ns = &scenario("cron", &[MESH, OPT_IN]).await;
    ns.create_object(cron_job()).await;
    ns.until("a success of the CronJob", async || {
        ns.get(&cron_job()).await["status"]["lastSuccessfulTime"].as_str().map(str::to_owned)
    })
    .await;
}
