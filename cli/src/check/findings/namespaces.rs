//! Finds the namespaces that are opted in, and those that only seem to be.

use contract::names::{DISABLED, ENABLED, INJECTION_LABEL};
use serde_json::Value;

use super::super::finding::{Finding, Id};
use super::super::snapshot::Snapshot;
use super::{items, name, some};
use crate::pods::{INJECTOR_LABELS, OptIn, REVISION_LABEL, revision, wrong_value};

pub(super) fn of(snapshot: &Snapshot) -> Vec<Finding> {
    let (mut inside, mut outside, mut findings) = (Vec::new(), Vec::new(), Vec::new());
    let selectors = snapshot.selectors();
    for namespace in &snapshot.namespaces {
        let name = name(namespace);
        let opt_in = selectors.opt_in_of_namespace(namespace);
        if opt_in.is_in() {
            match missing_revision(snapshot, namespace) {
                Some(finding) => findings.push(finding),
                None if selectors.is_in_mesh(namespace) => inside.push(name),
                None => outside.push(name),
            }
            continue;
        }
        if opt_in == OptIn::NotSelected {
            let message = format!("namespace {name} is not opted in: {}", opt_in.describe());
            let next = "kubectl get mutatingwebhookconfiguration zz-istio-aux -o yaml has the selectors";
            findings.push(Finding::problem(Id::NamespaceOptIn, message, next));
        }
        if let Some(value) = wrong_value(namespace) {
            findings.push(Finding::problem(
                Id::NamespaceLabel,
                format!(
                    "namespace {name} is not opted in: its label has the invalid value {value:?}; use {ENABLED} or {DISABLED}"
                ),
                format!("kubectl label namespace {name} --overwrite {INJECTION_LABEL}={ENABLED}"),
            ));
        }
    }
    if !inside.is_empty() {
        findings.push(Finding::ok(Id::NamespaceOptIn, format!("namespaces opted in: {}", some(&inside))));
    }
    if !outside.is_empty() {
        let message = "namespaces opted in that Istio's injector does not select, so that only pods with a label of \
                       their own are in the mesh";
        let finding = Finding::info(Id::NamespaceMesh, format!("{message}: {}", some(&outside)));
        findings.push(finding.with_remediation(format!("kubectl label namespace NAME {INJECTOR_LABELS}")));
    }
    if let Some(name) = &snapshot.missing_namespace {
        let message = format!("there is no namespace {name}");
        findings.push(Finding::problem(Id::NamespaceOptIn, message, "kubectl get namespaces"));
    }
    if inside.is_empty() && outside.is_empty() && findings.is_empty() {
        findings.extend(nothing_opted_in(snapshot));
    }
    findings
}

/// Finds a revision that a namespace asks for, as before an upgrade of Istio, and that no injector has any more.
fn missing_revision(snapshot: &Snapshot, namespace: &Value) -> Option<Finding> {
    let revision = revision(namespace)?;
    let has = |expression: &Value| {
        expression["key"] == REVISION_LABEL && items(&expression["values"]).any(|value| value == revision)
    };
    let selects = |webhook: &Value| {
        let selector = &webhook["namespaceSelector"];
        items(&selector["matchExpressions"]).any(has) || selector["matchLabels"][REVISION_LABEL] == revision
    };
    if snapshot.configurations.as_ref()?.iter().flat_map(|one| items(&one["webhooks"])).any(selects) {
        return None;
    }
    let name = name(namespace);
    let message = format!("namespace {name} asks for Istio's revision {revision}, which no injector has");
    let next = format!("istioctl tag list, and kubectl label namespace {name} --overwrite {REVISION_LABEL}=NAME");
    Some(Finding::problem(Id::NamespaceMesh, message, next))
}

fn nothing_opted_in(snapshot: &Snapshot) -> Option<Finding> {
    let names: Vec<&str> = snapshot.namespaces.iter().map(name).collect();
    let (message, which) = match names.as_slice() {
        // None could be read, which is a finding of its own.
        [] => return None,
        [name] => (format!("namespace {name} is not opted in"), *name),
        _ => ("no namespace is opted in; pods may be, by a label of their own".to_owned(), "NAME"),
    };
    let remediation = format!("kubectl label namespace {which} {INJECTION_LABEL}={ENABLED}");
    Some(Finding::info(Id::NamespaceOptIn, message).with_remediation(remediation))
}
