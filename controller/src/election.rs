//! Which of several replicas acts: the one whose name is in a Lease. kube has no leader election of its own.
//!
//! A replica goes by its own clock: a Lease that has not changed for its whole duration is free, whatever time it names.

use std::time::{Duration, Instant};

use api::describe_error;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

/// After this time without a renewal, another replica takes over.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for so long stops acting, before another takes over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
const ACQUIRE_INTERVAL: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
const _: () = assert!(RENEW_DEADLINE.as_secs() + REQUEST_TIMEOUT.as_secs() < LEASE_DURATION.as_secs());

/// What a replica does about a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Acquire,
    Renew,
    Wait,
}

/// Decides by the Lease's holder, and by how long the Lease has not changed.
fn turn(holder: Option<&str>, identity: &str, unchanged_for: Duration) -> Turn {
    match holder {
        None | Some("") => Turn::Acquire,
        Some(holder) if holder == identity => Turn::Renew,
        Some(_) if unchanged_for >= LEASE_DURATION => Turn::Acquire,
        Some(_) => Turn::Wait,
    }
}

/// A replica that stands for election.
pub(super) struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// The version of the Lease, and when it was first seen.
    seen: Option<(String, Instant)>,
    is_leader: bool,
}

impl Candidate {
    /// A replica of this name, which must be unique.
    pub(super) fn new(leases: Api<Lease>, name: &str, identity: &str) -> Self {
        Self { leases, name: name.to_owned(), identity: identity.to_owned(), seen: None, is_leader: false }
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
                Err(reason) if reason != reported => {
                    tracing::warn!(reason, lease = self.name, "cannot stand for election");
                    reported = reason;
                }
                Err(_) => {}
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
                Err(reason) if renewed.elapsed() + RENEW_INTERVAL >= RENEW_DEADLINE => {
                    self.is_leader = false;
                    return reason;
                }
                Err(reason) => tracing::warn!(reason, lease = self.name, "cannot renew the lease yet"),
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

    /// Reads the Lease and, if it is this replica's turn, writes it. Returns whether this replica is the leader.
    async fn step(&mut self) -> Result<bool, String> {
        let step = timeout(REQUEST_TIMEOUT, self.try_step()).await;
        let step = step.unwrap_or_else(|_| Err(format!("no answer within {REQUEST_TIMEOUT:?}")));
        if let Ok(is_leader) = step {
            self.is_leader = is_leader;
        }
        step
    }

    async fn try_step(&mut self) -> Result<bool, String> {
        let lease = self.leases.get(&self.name).await.map_err(|error| describe_error(&error))?;
        let version = lease.metadata.resource_version.unwrap_or_default();
        let spec = lease.spec.unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => Instant::now(),
        };
        self.seen = Some((version.clone(), since));
        let turn = turn(spec.holder_identity.as_deref(), &self.identity, since.elapsed());
        let mut patch = json!({
            "metadata": {"resourceVersion": version},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_DURATION.as_secs(),
                "renewTime": MicroTime(Timestamp::now()),
            },
        });
        match turn {
            Turn::Wait => return Ok(false),
            Turn::Renew => {}
            Turn::Acquire => {
                patch["spec"]["acquireTime"] = patch["spec"]["renewTime"].clone();
                patch["spec"]["leaseTransitions"] = (spec.lease_transitions.unwrap_or_default() + 1).into();
            }
        }
        match self.leases.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(true),
            // Another replica was first.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(describe_error(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fake::{Answer, client};

    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/istio-aux/leases/istio-aux-tenancy";

    #[test]
    fn a_lease_is_taken_where_it_is_free_or_has_not_changed_for_its_duration() {
        let (fresh, old) = (Duration::from_secs(1), LEASE_DURATION);
        let cases = [
            (None, fresh, Turn::Acquire),
            (Some(""), fresh, Turn::Acquire),
            (Some("me"), fresh, Turn::Renew),
            (Some("me"), old, Turn::Renew),
            (Some("other"), fresh, Turn::Wait),
            (Some("other"), old, Turn::Acquire),
        ];
        for (holder, unchanged_for, expected) in cases {
            assert_eq!(turn(holder, "me", unchanged_for), expected, "{holder:?} {unchanged_for:?}");
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
    async fn a_free_lease_makes_a_leader_and_another_ones_does_not() {
        for (holder, expected, writes) in [("", true, 1), ("me", true, 1), ("other", false, 0)] {
            let answers = [Answer::ok(&format!("GET {LEASE}"), lease(holder)), Answer::ok("PATCH ", lease("me"))];
            let (mut candidate, requests) = candidate(answers);
            assert_eq!(candidate.step().await, Ok(expected), "{holder}");
            let patches = requests.all().iter().filter(|line| line.starts_with("PATCH")).count();
            assert_eq!(patches, writes, "{holder}");
        }
    }

    #[tokio::test]
    async fn a_replica_that_comes_second_is_no_leader() {
        let answers =
            [Answer::ok(&format!("GET {LEASE}"), lease("")), Answer::failure("PATCH ", 409, "the object has changed")];
        assert_eq!(candidate(answers).0.step().await, Ok(false));
    }

    #[tokio::test]
    async fn a_missing_lease_is_an_error_with_the_servers_message() {
        assert_eq!(candidate([]).0.step().await, Err("not found".to_owned()));
    }
}
