//! The shim by `ConfigMap`: whether pods that are told to mount one find it. Pure.

use std::collections::BTreeSet;

use contract::names::{SHIM_CONFIG_MAP_PREFIX, SHIM_DELIVERY_LABEL, SHIM_DELIVERY_PREFIX};
use serde_json::Value;

use super::super::finding::{Finding, Id};
use super::super::snapshot::Snapshot;
use super::{items, name, some, text};
use crate::explain::label;
use crate::tenancy::is_ours;

pub(super) fn of(snapshot: &Snapshot) -> Vec<Finding> {
    let delivered: Vec<&Value> = snapshot.namespaces.iter().filter(|namespace| version(namespace).is_some()).collect();
    let mut findings = Vec::new();
    if !delivered.is_empty() {
        findings.extend(architectures(snapshot));
    }
    if let (Some(config_maps), [namespace]) = (&snapshot.shim_config_maps, snapshot.namespaces.as_slice()) {
        findings.extend(foreign(config_maps, namespace));
        if let Some(version) = version(namespace) {
            findings.push(mount(snapshot, config_maps, namespace, version));
        }
    }
    findings
}

/// The version whose `ConfigMap` a namespace has, by its label.
fn version(namespace: &Value) -> Option<&str> {
    label(namespace, SHIM_DELIVERY_LABEL)?.strip_prefix(SHIM_DELIVERY_PREFIX)
}

/// One binary is for one architecture.
fn architectures(snapshot: &Snapshot) -> Option<Finding> {
    let all: BTreeSet<&str> = snapshot.nodes.iter().map(|node| text(node, "/status/nodeInfo/architecture")).collect();
    let all: Vec<&str> = all.into_iter().filter(|architecture| !architecture.is_empty()).collect();
    (all.len() > 1).then(|| {
        let message = format!(
            "nodes have several architectures ({}), and the ConfigMap of the shim has a binary for one",
            some(&all)
        );
        Finding::problem(Id::ShimDelivery, message, "install with delivery copy (docs/config-map.md)")
    })
}

fn foreign(config_maps: &[Value], namespace: &Value) -> Option<Finding> {
    let names: Vec<&str> = config_maps.iter().filter(|one| !is_ours(one)).map(name).collect();
    (!names.is_empty()).then(|| {
        let place = name(namespace);
        let message = format!(
            "ConfigMaps {SHIM_CONFIG_MAP_PREFIX}* in {place} are somebody else's, and are left as they are: {}",
            some(&names)
        );
        Finding::problem(Id::ShimDelivery, message, format!("kubectl -n {place} delete configmap {}", names.join(" ")))
    })
}

fn mount(snapshot: &Snapshot, config_maps: &[Value], namespace: &Value, version: &str) -> Finding {
    let place = name(namespace);
    if !config_maps.iter().any(is_ours) {
        let message = format!("namespace {place} has the label {SHIM_DELIVERY_LABEL}, and no ConfigMap of the shim");
        let next = format!("kubectl label namespace {place} {SHIM_DELIVERY_LABEL}-");
        return Finding::problem(Id::ShimDelivery, message, next);
    }
    if is_selected(snapshot, version) {
        Finding::ok(Id::ShimDelivery, format!("namespace {place}: pods mount the ConfigMap of the shim {version}"))
    } else {
        let message = format!(
            "namespace {place} has the ConfigMap of the shim {version}, and the webhook configuration asks for another \
             version's: pods get the copy until the update is complete"
        );
        Finding::info(Id::ShimDelivery, message)
    }
}

/// Whether the webhook configuration selects namespaces that have this version's `ConfigMap`.
fn is_selected(snapshot: &Snapshot, version: &str) -> bool {
    let path = format!("/mutate/config-map/{version}");
    let webhooks = snapshot.configurations.iter().flatten().flat_map(|configuration| items(&configuration["webhooks"]));
    webhooks.into_iter().any(|webhook| webhook["clientConfig"]["service"]["path"] == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Severity;
    use serde_json::json;

    /// A namespace that has what its label says.
    fn delivered() -> Snapshot {
        let labels = json!({"app.kubernetes.io/managed-by": "istio-aux-tenancy"});
        let webhook = json!({"clientConfig": {"service": {"path": "/mutate/config-map/1.2.3"}}});
        Snapshot {
            namespaces: vec![
                json!({"metadata": {"name": "team", "labels": {"istio-aux.io/shim-delivery": "config-map-1.2.3"}}}),
            ],
            shim_config_maps: Some(vec![json!({"metadata": {"name": "istio-aux-shim-0", "labels": labels}})]),
            configurations: Some(vec![json!({"webhooks": [webhook]})]),
            nodes: vec![json!({"status": {"nodeInfo": {"architecture": "amd64"}}})],
            ..Snapshot::default()
        }
    }

    #[test]
    fn what_keeps_pods_from_their_mount_is_named() {
        type Spoil = fn(&mut Snapshot);
        let cases: [(Spoil, &[(Severity, &str)]); 6] = [
            (|_| {}, &[(Severity::Ok, "namespace team: pods mount the ConfigMap of the shim 1.2.3")]),
            (
                |s| s.shim_config_maps = Some(vec![]),
                &[(Severity::Problem, "namespace team has the label istio-aux.io/shim-delivery, and no")],
            ),
            (
                |s| s.configurations = Some(vec![]),
                &[(Severity::Info, "namespace team has the ConfigMap of the shim 1.2.3, and the webhook")],
            ),
            (
                |s| s.shim_config_maps.as_mut().unwrap().push(json!({"metadata": {"name": "istio-aux-shim-1"}})),
                &[
                    (Severity::Problem, "ConfigMaps istio-aux-shim-* in team are somebody else's"),
                    (Severity::Ok, "namespace team"),
                ],
            ),
            (
                |s| s.nodes.push(json!({"status": {"nodeInfo": {"architecture": "arm64"}}})),
                &[
                    (Severity::Problem, "nodes have several architectures (amd64, arm64)"),
                    (Severity::Ok, "namespace team"),
                ],
            ),
            (|s| s.namespaces[0]["metadata"]["labels"] = json!({"istio-aux.io/shim-delivery": "copy"}), &[]),
        ];
        for (spoil, expected) in cases {
            let mut snapshot = delivered();
            spoil(&mut snapshot);
            let found = of(&snapshot);
            assert_eq!(found.len(), expected.len(), "{expected:?}: {found:#?}");
            for (finding, (severity, message)) in found.iter().zip(expected) {
                assert_eq!(finding.severity, *severity, "{finding:?}");
                assert!(finding.message.starts_with(message), "{finding:?}");
            }
        }
    }
}
