//! Judges what a cluster's state means for pods that run to completion. Pure.

mod installation;
mod istio;
mod namespaces;
mod node_proxies;
mod servers;
mod shim_image;
mod stuck_pods;
mod tenants;

use serde_json::Value;

pub(super) use self::installation::order;
pub(super) use self::istio::injected_proxies;
pub(super) use self::servers::{nodes, server};
use super::finding::{Finding, Id};
use super::snapshot::Snapshot;

/// Limits the names that a message lists. The others are counted.
const NAMES_LIMIT: usize = 20;

/// Returns all findings for a snapshot. `now` is in seconds since 1970.
pub(super) fn of(snapshot: &Snapshot, now: i64) -> Vec<Finding> {
    let mut findings = vec![server(snapshot)];
    findings.extend(nodes(snapshot));
    findings.extend(installation::of(snapshot, now));
    findings.extend(istio::of(snapshot));
    findings.extend(namespaces::of(snapshot));
    findings.extend(stuck_pods::of(&snapshot.pods.stuck, now));
    findings.extend(shim_image::of(&snapshot.pods.unpulled));
    findings.extend(tenants::of(snapshot));
    findings.extend(node_proxies::of(snapshot));
    findings.extend(snapshot.pods.decisions.iter().map(|pod| match pod.decision {
        Some(_) if pod.run_on.is_empty() => Finding::ok(Id::PodDecision, pod.describe("; ")),
        _ => Finding::info(Id::PodDecision, pod.describe("; ")),
    }));
    findings.extend(unreadable(snapshot));
    findings
}

/// Returns a finding for each object that could not be read.
pub(super) fn unreadable(snapshot: &Snapshot) -> impl Iterator<Item = Finding> {
    snapshot.unreadable.iter().map(|reason| Finding::info(Id::Unreadable, reason.clone()))
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Joins the first names, and counts the others.
fn some(names: &[&str]) -> String {
    let first = names[..names.len().min(NAMES_LIMIT)].join(", ");
    if names.len() > NAMES_LIMIT { format!("{first} and {} more", names.len() - NAMES_LIMIT) } else { first }
}

#[cfg(test)]
mod tests;
