//! Waiting for conditions in a scenario's namespace.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

use super::Namespace;
use super::objects::name_of;
use crate::kubectl::kubectl;
use crate::{PodView, has_condition, manifests};

/// The time that a pod may take to start or end before a scenario fails. Two cores start a proxy in seconds, and ten at once
/// in less than a minute. The shim waits 150 s for a container that the runtime could not create.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(4);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns how many times longer everything may take than on a machine of today: `SLOWNESS`, which `hack/with-vm` sets.
pub(crate) fn slowness() -> u32 {
    let text = std::env::var("SLOWNESS").unwrap_or_else(|_| "1".to_owned());
    text.parse().unwrap_or_else(|_| panic!("SLOWNESS is a number: {text}"))
}

impl Namespace {
    /// Polls until `ask` returns something. Panics with `what` after [`WAIT_TIMEOUT`].
    pub async fn until<T>(&self, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
        self.until_within(WAIT_TIMEOUT, what, ask).await
    }

    /// Waits until there is an event about an object of this kind, for this reason. Returns the messages of all such events.
    pub async fn until_event(&self, kind: &str, reason: &str) -> String {
        let selector = format!("--field-selector=reason={reason},involvedObject.kind={kind}");
        let words = ["-n", self.name(), "get", "events", &selector, "--output=jsonpath={.items[*].message}"];
        self.until(&format!("an event {reason}"), async || Some(kubectl(&words)).filter(|text| !text.is_empty())).await
    }

    /// Polls until `ask` returns something. Panics with `what` after `limit`.
    pub async fn until_within<T>(&self, limit: Duration, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
        let (began, limit) = (Instant::now(), limit * slowness());
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            assert!(began.elapsed() < limit, "waited {limit:?} for {what} in namespace {}", self.name());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Asserts once a second that something keeps holding for so long.
    pub async fn holds_for(&self, long: Duration, what: &str, ask: impl AsyncFn() -> bool) {
        let began = Instant::now();
        while began.elapsed() < long {
            assert!(ask().await, "{what} no longer held after {:?} in namespace {}", began.elapsed(), self.name());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Waits for a pod of which `seen` returns something.
    pub async fn pod_until<T>(&self, pod: &str, what: &str, seen: impl Fn(&Pod) -> Option<T>) -> T {
        self.until(&format!("{what} of pod {pod}"), async || seen(&self.pod(pod).await)).await
    }

    /// Waits until a pod of which `is_so` is true has a label, `key=value`.
    pub async fn until_a_pod(&self, label: &str, what: &str, is_so: impl Fn(PodView) -> bool) {
        self.until(&format!("{what} of a pod with {label}"), async || {
            self.pods_with(label).await.iter().any(|pod| is_so(PodView(pod))).then_some(())
        })
        .await;
    }

    /// Waits for the final phase of a pod.
    pub async fn final_phase(&self, pod: &str) -> String {
        self.pod_until(pod, "the end", |pod| PodView(pod).final_phase()).await
    }

    /// Waits until a pod has ended, asserts that this is its final phase, and returns it.
    pub async fn until_ended(&self, pod: &str, phase: &str) -> Pod {
        let ended = self.final_phase(pod).await;
        let pod = self.pod(pod).await;
        assert_eq!(ended, phase, "{}", PodView(&pod).in_a_line());
        pod
    }

    /// Waits until a pod is gone.
    pub async fn until_gone(&self, pod: &str) {
        self.until(&format!("pod {pod} to go"), async || (!self.has_pod(pod).await).then_some(())).await;
    }

    /// Waits for the one pod with a label, `key=value`, and returns it.
    pub async fn pod_with(&self, label: &str) -> Pod {
        self.until(&format!("a pod with {label}"), async || self.pods_with(label).await.pop()).await
    }

    /// Waits for the one pod of a Job, and returns its name.
    pub async fn pod_of_job(&self, job: &str) -> String {
        self.pod_with(&format!("batch.kubernetes.io/job-name={job}")).await.name_any()
    }

    /// Waits until a Job is complete.
    pub async fn until_complete(&self, job: &str) {
        self.until_condition(&manifests::job(job, &Value::Null), &["Complete"]).await;
    }

    /// Waits until an object, by the kind and name of `like`, has one of these conditions, and returns it.
    pub async fn until_condition(&self, like: &Value, conditions: &[&str]) -> Value {
        self.until(&format!("{} {} to be {}", like["kind"], name_of(like), conditions.join(" or ")), async || {
            let now = self.get(like).await;
            conditions.iter().any(|condition| has_condition(&now, condition)).then_some(now)
        })
        .await
    }
}
