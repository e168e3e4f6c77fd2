//! Jobs of several shapes, and how each must end.

use e2e::manifests::{container, job, native_sidecar, pod_spec, shell, with_init, with_memory};
use e2e::{PodView, has_condition};
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
    format!(
        "{script}; curl -sSf --max-time 5 -o /dev/null http://localhost:15021/healthz/ready || exit 99; exit {code}"
    )
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

/// Runs a Job to its end, and compares that with what its payload did.
pub(crate) async fn run(soak: &Soak<'_>, number: usize) -> Result<(), String> {
    let shape = &SHAPES[number % SHAPES.len()];
    let name = format!("{}-{number}", shape.name);
    let mut job = job(&name, &(shape.spec)());
    job["spec"]["backoffLimit"] = json!(shape.retries);
    let ended = soak.run(&job, |job| has_condition(job, "Complete") || has_condition(job, "Failed")).await?;
    if let Some(pods) = soak.ended_pods(&format!("batch.kubernetes.io/job-name={name}")).await? {
        let last = PodView(pods.last().ok_or_else(|| format!("{name} has no pod"))?);
        let differs = shape.codes.iter().any(|(container, expected)| last.exit_code(container) != Some(*expected));
        if !has_condition(&ended, shape.end) || differs {
            return Err(format!("{name} is to be {}: {}: {}", shape.end, ended["status"], last.in_a_line()));
        }
    }
    soak.delete(&job).await;
    Ok(())
}
