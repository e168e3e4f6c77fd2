//! Elects one of several replicas by a Lease. kube has no leader election.
//!
//! A replica uses its own clock: a Lease that has not changed for its whole duration is free, whatever time it names.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use api::describe_error;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

/// Lets another replica take over after this time without a renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Stops a leader that could not renew, before another takes over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
const ACQUIRE_INTERVAL: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
const _: () = assert!(RENEW_DEADLINE.as_secs() + REQUEST_TIMEOUT.as_secs() < LEASE_DURATION.as_secs());

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
    name: String,
    identity: String,
    /// Holds the version of the Lease, and when it was first seen.
    observed: Option<(String, Instant)>,
    is_leader: bool,
}

impl Candidate {
    /// Returns a candidate of this identity, which must be unique.
    pub(super) fn new(leases: Api<Lease>, name: &str, identity: &str) -> Self {
        Self { leases, name: name.to_owned(), identity: identity.to_owned(), observed: None, is_leader: false }
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
        let mut renewed = Instant::now();
        loop {
            sleep(RENEW_INTERVAL).await;
            match self.step().await {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => return "another replica took over".to_owned(),
                Err(error) => {
                    let reason = describe_error(error.as_ref());
                    if renewed.elapsed() + RENEW_INTERVAL >= RENEW_DEADLINE {
                        self.is_leader = false;
                        return reason;
                    }
                    tracing::warn!(reason, lease = self.name, "cannot renew the lease yet");
                }
            }
        }
    }

    /// Frees the Lease, so that another replica need not wait.
    pub(super) async fn release(&mut self) {
        if !std::mem::take(&mut self.is_leader) {
            return;
        }
        let free = json!({"spec": {"holderIdentity": ""}});
        let patch = Patch::Merge(free);
        let freed = timeout(REQUEST_TIMEOUT, self.leases.patch(&self.name, &PatchParams::default(), &patch)).await;
        if !matches!(freed, Ok(Ok(_))) {
            tracing::warn!(lease = self.name, "the lease could not be freed; another replica takes over in 15 s");
        }
    }

    /// Reads the Lease and, if it is this replica's turn, writes it. Returns true if this replica is the leader.
    async fn step(&mut self) -> Result<bool> {
        let step = timeout(REQUEST_TIMEOUT, self.try_step()).await;
        let step = step.unwrap_or_else(|_| Err(anyhow!("no answer within {REQUEST_TIMEOUT:?}")));
        if let Ok(is_leader) = step {
            self.is_leader = is_leader;
        }
        step
    }

    async fn try_step(&mut self) -> Result<bool> {
        let lease = self.leases.get(&self.name).await?;
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
            Ok(_) => Ok(true),
            // Another replica was first.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fake::{Answer, client};

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
        (Candidate::new(Api::namespaced(client, "istio-aux"), "istio-aux-tenancy", "me"), requests)
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
    async fn missing_lease_is_an_error() {
        let error = candidate([]).0.step().await.unwrap_err();
        assert_eq!(describe_error(error.as_ref()), "not found");
    }
}
