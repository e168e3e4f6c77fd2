//! Jobs of several shapes, and how each must end.

use contract::names::{PROXY_CONTAINER, SHIM_CONTAINER};
use e2e::manifests::{NEEDS_PROXY, container, job, native_sidecar, pod_spec, shell, with_init, with_memory};
use e2e::namespace::name_of;
use e2e::{Namespace, PodView, has_condition};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::Soak;

/// A kind of Job.
struct Shape {
    name: &'static str,
    spec: fn() -> Value,
    /// Sets the Job's `backoffLimit`.
    retries: u32,
    /// The condition that the Job ends with.
    end: &'static str,
    /// The exit codes of its last pod's containers.
    codes: &'static [(&'static str, i32)],
}

/// Returns a script that needs the mesh in its last act, and ends with 99 without it.
fn in_the_end(script: &str, code: u8) -> String {
    format!("{script}; {NEEDS_PROXY}; exit {code}")
}

/// Returns the same Job for a namespace without a mesh.
fn control_of(job: &Value) -> Value {
    serde_json::from_str(&job.to_string().replace(NEEDS_PROXY, "true")).expect("it is JSON still")
}

const SHAPES: [Shape; 7] = [
    Shape {
        name: "instant",
        spec: || pod_spec("Never", &[container("main", &["true"])]),
        retries: 0,
        end: "Complete",
        codes: &[("main", 0)],
    },
    Shape {
        name: "seconds",
        spec: || pod_spec("Never", &[shell("main", &in_the_end("sleep 3", 0))]),
        retries: 0,
        end: "Complete",
        codes: &[("main", 0)],
    },
    Shape {
        name: "three-containers",
        spec: || {
            pod_spec(
                "Never",
                &[
                    shell("one", "true"),
                    shell("two", &in_the_end("sleep 1", 0)),
                    shell("three", &in_the_end("sleep 2", 0)),
                ],
            )
        },
        retries: 0,
        end: "Complete",
        codes: &[("one", 0), ("two", 0), ("three", 0)],
    },
    Shape {
        name: "failing",
        spec: || {
            pod_spec("Never", &[shell("main", &in_the_end("sleep 1", 3)), shell("other", &in_the_end("sleep 2", 0))])
        },
        retries: 0,
        end: "Failed",
        codes: &[("main", 3), ("other", 0)],
    },
    Shape {
        name: "restarted-in-place",
        spec: || {
            let first = format!("[ -e /memory/tried ] || {{ touch /memory/tried; {}; }}", in_the_end("true", 5));
            with_memory(pod_spec("OnFailure", &[shell("main", &in_the_end(&format!("{first}; sleep 1"), 0))]))
        },
        retries: 6,
        end: "Complete",
        codes: &[("main", 0)],
    },
    Shape {
        name: "another-pod",
        spec: || pod_spec("Never", &[shell("main", &in_the_end("sleep 1", 7))]),
        retries: 1,
        end: "Failed",
        codes: &[("main", 7)],
    },
    Shape {
        name: "native-sidecar",
        spec: || {
            with_init(pod_spec("Never", &[shell("main", &in_the_end("sleep 2", 0))]), &[native_sidecar("sidecar")])
        },
        retries: 0,
        end: "Complete",
        codes: &[("main", 0)],
    },
];

/// Runs a Job to its end beside its control, and compares the end with what its payload did.
pub(crate) async fn run(soak: &Soak<'_>, number: usize) -> Result<(), String> {
    let shape = &SHAPES[number % SHAPES.len()];
    let mut job = job(&format!("{}-{number}", shape.name), &(shape.spec)());
    job["spec"]["backoffLimit"] = json!(shape.retries);
    let control = control_of(&job);
    let (ended, control_ended) = tokio::join!(end(soak, soak.ns, &job), end(soak, soak.plain, &control));
    let ((ended, pods), (control_ended, control_pods)) = (ended?, control_ended?);
    if let (Some(lag), Some(control_lag)) = (lag(&ended, &pods), lag(&control_ended, &control_pods)) {
        soak.note_lag(lag, control_lag, PodView(pods.last().expect("it has a lag")));
    }
    if soak.take_in(&pods).await {
        let last = PodView(pods.last().ok_or_else(|| format!("{} has no pod", shape.name))?);
        let differs = shape.codes.iter().any(|(container, expected)| last.exit_code(container) != Some(*expected));
        if !has_condition(&ended, shape.end) || differs {
            return Err(format!("{number} is to be {}: {}: {}", shape.end, ended["status"], last.in_a_line()));
        }
    }
    soak.delete(soak.ns, &job).await;
    soak.delete(soak.plain, &control).await;
    Ok(())
}

/// Runs a Job to its end. Returns it, and its pods, oldest first.
async fn end(soak: &Soak<'_>, ns: &Namespace, job: &Value) -> Result<(Value, Vec<Pod>), String> {
    let ended = soak.run(ns, job, |job| has_condition(job, "Complete") || has_condition(job, "Failed")).await?;
    Ok((ended, soak.ended_pods(ns, &format!("batch.kubernetes.io/job-name={}", name_of(job))).await?))
}

/// Returns the seconds from the payload's end to the Job's, as the API server has both: in whole seconds.
fn lag(job: &Value, pods: &[Pod]) -> Option<i64> {
    let job: Job = serde_json::from_value(job.clone()).ok()?;
    let ended = |kind: &str| kind == "Complete" || kind == "Failed";
    let condition = job.status?.conditions?.into_iter().find(|one| ended(&one.type_) && one.status == "True")?;
    let view = PodView(pods.last()?);
    let payload = view.container_names().filter(|name| ![PROXY_CONTAINER, SHIM_CONTAINER, "sidecar"].contains(name));
    let payload_end = payload.filter_map(|name| view.ended_at(name)).max()?;
    Some(condition.last_transition_time?.0.as_second() - payload_end.0.as_second())
}
