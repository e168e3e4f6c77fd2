//! Elects one of several replicas by a Lease. kube has no leader election.
//!
//! A replica uses its own clock: a Lease that has not changed for its whole duration is free, whatever time it names.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, anyhow};
use api::describe_error;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Lets another replica take over after this time without a renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Stops a leader that could not renew, before another takes over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// Pause before the next try to renew.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const ACQUIRE_INTERVAL: Duration = Duration::from_secs(2);
/// Limits one step, which has two requests.
const STEP_TIMEOUT: Duration = Duration::from_secs(3);
/// The last renewal is counted from before its request, so a leader ends before the Lease does.
const _: () = assert!(RENEW_DEADLINE.as_secs() < LEASE_DURATION.as_secs());

/// Selects what a replica does about a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseAction {
    Acquire,
    Renew,
    Wait,
}

/// Decides by the Lease's holder, and by how long the Lease has not changed.
fn next_action(holder: Option<&str>, identity: &str, unchanged_for: Duration) -> LeaseAction {
    match holder {
        None | Some("") => LeaseAction::Acquire,
        Some(holder) if holder == identity => LeaseAction::Renew,
        Some(_) if unchanged_for >= LEASE_DURATION => LeaseAction::Acquire,
        Some(_) => LeaseAction::Wait,
    }
}

/// Stands for election as one replica.
pub(super) struct Candidate {
    leases: Api<Lease>,
    /// Has the labels of a Lease that it creates, by which its removal finds it.
    labels: BTreeMap<String, String>,
    name: String,
    identity: String,
    /// Holds the version of the Lease, and when it was first seen.
    observed: Option<(String, Instant)>,
    is_leader: bool,
}

impl Candidate {
    /// Returns a candidate of this identity, which must be unique.
    pub(super) fn new(leases: Api<Lease>, labels: BTreeMap<String, String>, name: &str, identity: &str) -> Self {
        Self { leases, labels, name: name.to_owned(), identity: identity.to_owned(), observed: None, is_leader: false }
    }

    /// Waits until this replica is the leader. Calls `reached` whenever the API server has answered.
    pub(super) async fn acquire(&mut self, reached: impl Fn()) {
        let mut reported = String::new();
        loop {
            match self.step().await {
                Ok(true) => {
                    reached();
                    return;
                }
                Ok(false) => {
                    reached();
                    reported.clear();
                }
                Err(error) => {
                    let reason = describe_error(error.as_ref());
                    if reason != reported {
                        tracing::warn!(reason, lease = self.name, "cannot stand for election");
                    }
                    reported = reason;
                }
            }
            sleep(ACQUIRE_INTERVAL).await;
        }
    }

    /// Renews the Lease until it is lost, and returns the reason.
    pub(super) async fn keep(&mut self) -> String {
        let (mut renewed, mut pause) = (Instant::now(), RENEW_INTERVAL);
        loop {
            sleep(pause).await;
            let began = Instant::now();
            let step = timeout_at(renewed + RENEW_DEADLINE, self.step()).await;
            match step.unwrap_or_else(|_| Err(anyhow!("not renewed within {RENEW_DEADLINE:?}"))) {
                Ok(true) => (renewed, pause) = (began, RENEW_INTERVAL),
                Ok(false) => return "another replica took over".to_owned(),
                Err(error) => {
                    let reason = describe_error(error.as_ref());
                    if renewed.elapsed() >= RENEW_DEADLINE {
                        self.is_leader = false;
                        return reason;
                    }
                    tracing::warn!(reason, lease = self.name, "cannot renew the lease yet");
                    pause = RETRY_INTERVAL;
                }
            }
        }
    }

    /// Frees the Lease, unless another replica holds it by now, so that another replica need not wait.
    pub(super) async fn release(&mut self) {
        if !std::mem::take(&mut self.is_leader) {
            return;
        }
        let version = self.observed.as_ref().map(|(version, _)| version);
        let free = json!({"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}});
        let patch = Patch::Merge(free);
        let freed = timeout(STEP_TIMEOUT, self.leases.patch(&self.name, &PatchParams::default(), &patch)).await;
        if !matches!(freed, Ok(Ok(_))) {
            tracing::warn!(lease = self.name, "the lease could not be freed; another replica takes over in 15 s");
        }
    }

    /// Reads the Lease and, if it is this replica's turn, writes it. Returns true if this replica is the leader.
    async fn step(&mut self) -> Result<bool> {
        let step = timeout(STEP_TIMEOUT, self.try_step()).await;
        let step = step.unwrap_or_else(|_| Err(anyhow!("no answer within {STEP_TIMEOUT:?}")));
        if let Ok(is_leader) = step {
            self.is_leader = is_leader;
        }
        step
    }

    async fn try_step(&mut self) -> Result<bool> {
        let lease = match self.leases.get(&self.name).await {
            Err(kube::Error::Api(status)) if status.code == 404 => self.create().await?,
            lease => lease?,
        };
        let version = lease.metadata.resource_version.unwrap_or_default();
        let spec = lease.spec.unwrap_or_default();
        let since = match &self.observed {
            Some((observed, since)) if *observed == version => *since,
            _ => Instant::now(),
        };
        self.observed = Some((version.clone(), since));
        let action = next_action(spec.holder_identity.as_deref(), &self.identity, since.elapsed());
        let mut patch = json!({
            "metadata": {"resourceVersion": version},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_DURATION.as_secs(),
                "renewTime": MicroTime(Timestamp::now()),
            },
        });
        match action {
            LeaseAction::Wait => return Ok(false),
            LeaseAction::Renew => {}
            LeaseAction::Acquire => {
                patch["spec"]["acquireTime"] = patch["spec"]["renewTime"].clone();
                patch["spec"]["leaseTransitions"] = (spec.lease_transitions.unwrap_or_default() + 1).into();
            }
        }
        match self.leases.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(lease) => {
                self.observed = Some((lease.metadata.resource_version.unwrap_or_default(), Instant::now()));
                Ok(true)
            }
            // Another client changed the Lease first. For a leader that is an error, and it tries again.
            Err(kube::Error::Api(status)) if status.code == 409 && action == LeaseAction::Acquire => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the Lease. It is not a manifest: Argo CD applies none of this kind (argo-cd#12722).
    async fn create(&self) -> kube::Result<Lease> {
        let (name, labels) = (Some(self.name.clone()), Some(self.labels.clone()));
        let metadata = ObjectMeta { name, labels, ..ObjectMeta::default() };
        self.leases.create(&PostParams::default(), &Lease { metadata, spec: None }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fake::{Answer, client};
    use inject::tenancy::objects::labels;

    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/istio-aux/leases/istio-aux-tenancy";

    #[test]
    fn expired_or_free_lease_is_acquired() {
        let (fresh, old) = (Duration::from_secs(1), LEASE_DURATION);
        let cases = [
            (None, fresh, LeaseAction::Acquire),
            (Some(""), fresh, LeaseAction::Acquire),
            (Some("me"), fresh, LeaseAction::Renew),
            (Some("me"), old, LeaseAction::Renew),
            (Some("other"), fresh, LeaseAction::Wait),
            (Some("other"), old, LeaseAction::Acquire),
        ];
        for (holder, unchanged_for, expected) in cases {
            assert_eq!(next_action(holder, "me", unchanged_for), expected, "{holder:?} {unchanged_for:?}");
        }
    }

    fn candidate(answers: impl IntoIterator<Item = Answer>) -> (Candidate, api::fake::Requests) {
        let (client, requests) = client(answers);
        (Candidate::new(Api::namespaced(client, "istio-aux"), labels("istio-aux"), "istio-aux-tenancy", "me"), requests)
    }

    fn lease(holder: &str) -> serde_json::Value {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "istio-aux-tenancy", "resourceVersion": "7"}, "spec": {"holderIdentity": holder}})
    }

    #[tokio::test]
    async fn free_lease_makes_a_leader() {
        for (holder, expected, writes) in [("", true, 1), ("me", true, 1), ("other", false, 0)] {
            let answers = [Answer::ok(&format!("GET {LEASE}"), lease(holder)), Answer::ok("PATCH ", lease("me"))];
            let (mut candidate, requests) = candidate(answers);
            assert_eq!(candidate.step().await.unwrap(), expected, "{holder}");
            let patches = requests.all().iter().filter(|line| line.starts_with("PATCH")).count();
            assert_eq!(patches, writes, "{holder}");
        }
    }

    #[tokio::test]
    async fn second_replica_is_not_the_leader() {
        let answers =
            [Answer::ok(&format!("GET {LEASE}"), lease("")), Answer::failure("PATCH ", 409, "the object has changed")];
        assert!(!candidate(answers).0.step().await.unwrap());
    }

    #[tokio::test]
    async fn missing_lease_is_created() {
        let path = LEASE.trim_end_matches("/istio-aux-tenancy");
        let answers = [Answer::ok(&format!("POST {path}"), lease("")), Answer::ok("PATCH ", lease("me"))];
        let (mut candidate, requests) = candidate(answers);
        assert!(candidate.step().await.unwrap());
        assert_eq!(requests.writes(), [format!("POST {path}"), format!("PATCH {LEASE}")]);
        let created = &requests.bodies()[1];
        assert!(created.contains(r#""app.kubernetes.io/managed-by":"istio-aux-tenancy""#), "{created}");
    }

    #[tokio::test]
    async fn freed_lease_is_the_one_that_was_renewed() {
        let answers = [Answer::ok(&format!("GET {LEASE}"), lease("me")), Answer::ok("PATCH ", lease("me"))];
        let (mut candidate, requests) = candidate(answers);
        candidate.step().await.unwrap();
        candidate.release().await;
        let freed = requests.bodies().pop().unwrap();
        assert!(freed.contains(r#""holderIdentity":"""#) && freed.contains(r#""resourceVersion":"7""#), "{freed}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_renewal_does_not_end_a_term() {
        let renews = [Answer::ok(&format!("GET {LEASE}"), lease("me")), Answer::ok("PATCH ", lease("me"))];
        let (mut candidate, requests) = candidate(renews);
        requests.never_answer(1);
        let ended = timeout(Duration::from_mins(1), candidate.keep()).await;
        assert!(ended.is_err(), "one request without an answer: {ended:?}");
        requests.never_answer(usize::MAX);
        let began = Instant::now();
        let reason = timeout(Duration::from_mins(1), candidate.keep()).await.expect("it ends");
        assert!(began.elapsed() < LEASE_DURATION, "{reason} after {:?}", began.elapsed());
    }
}
