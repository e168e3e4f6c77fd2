//! Checks that what a namespace's label `istio-aux.io/proxy` needs is installed (docs/node.md). Pure.

use contract::names::{NODE, NODE_RUNTIME_CLASS, PROXY_LABEL};

use super::super::finding::{Finding, Id};
use super::super::snapshot::{CONFIGURATION_NAME, Snapshot};
use super::{items, name, some, text};
use crate::pods::label;

/// Is the path of the webhook configuration's entry for such pods.
const PATH: &str = "/mutate/node";

pub(super) fn of(snapshot: &Snapshot) -> Vec<Finding> {
    let (mut asking, mut findings) = (Vec::new(), Vec::new());
    for namespace in &snapshot.namespaces {
        match label(namespace, PROXY_LABEL) {
            None => {}
            Some(NODE) => asking.push(name(namespace)),
            Some(value) => findings.push(invalid_value(name(namespace), value)),
        }
    }
    if !asking.is_empty() {
        let missing: Vec<_> =
            [entry(snapshot), runtime_class(snapshot), agent(snapshot)].into_iter().flatten().collect();
        let all_were_read = snapshot.configurations.is_some()
            && snapshot.has_node_runtime_class.is_some()
            && snapshot.node_agents.is_some();
        if missing.is_empty() && all_were_read {
            let message = format!("namespaces whose pods use the node's proxies: {}", some(&asking));
            findings.push(Finding::ok(Id::NodeProxy, message));
        }
        findings.extend(missing);
    }
    findings
}

fn invalid_value(namespace: &str, value: &str) -> Finding {
    let message = format!("namespace {namespace}: label {PROXY_LABEL}: invalid value {value:?}; use {NODE}");
    Finding::problem(
        Id::NodeProxy,
        message,
        format!("kubectl label namespace {namespace} --overwrite {PROXY_LABEL}={NODE}"),
    )
}

fn entry(snapshot: &Snapshot) -> Option<Finding> {
    let ours = snapshot.configurations.as_ref()?.iter().filter(|found| name(found) == CONFIGURATION_NAME);
    let mut entries = ours.flat_map(|configuration| items(&configuration["webhooks"]));
    let has_entry = entries.any(|entry| text(entry, "/clientConfig/service/path") == PATH);
    (!has_entry).then(|| {
        let message = format!("the label {PROXY_LABEL} does nothing: the webhook's configuration has no entry for it");
        Finding::problem(Id::NodeProxy, message, "helm upgrade … --set nodeProxy.enabled=true (docs/node.md)")
    })
}

fn runtime_class(snapshot: &Snapshot) -> Option<Finding> {
    (snapshot.has_node_runtime_class == Some(false)).then(|| {
        let message = format!("there is no RuntimeClass {NODE_RUNTIME_CLASS}, so pods with {PROXY_LABEL} are rejected");
        Finding::problem(Id::NodeProxy, message, "install the chart istio-aux-node (docs/node-operations.md)")
    })
}

fn agent(snapshot: &Snapshot) -> Option<Finding> {
    let agents = snapshot.node_agents.as_ref()?;
    let total = |field: &str| agents.iter().filter_map(|agent| agent["status"][field].as_u64()).sum::<u64>();
    let (ready, wanted) = (total("numberReady"), total("desiredNumberScheduled"));
    (wanted == 0 || ready < wanted).then(|| {
        let message = match wanted {
            0 => "no node has the node agent; pods wait for it".to_owned(),
            _ => format!("the node agent is ready on {ready} of {wanted} nodes; pods wait for it on the others"),
        };
        let next = "kubectl get pods --all-namespaces --selector=app.kubernetes.io/name=istio-aux-node --output=wide";
        Finding::problem(Id::NodeProxy, message, next)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a cluster in which a namespace has the label, and all that it needs is installed.
    fn ready() -> Snapshot {
        let entry = json!({"clientConfig": {"service": {"path": PATH}}});
        Snapshot {
            configurations: Some(vec![json!({"metadata": {"name": CONFIGURATION_NAME}, "webhooks": [entry]})]),
            namespaces: vec![json!({"metadata": {"name": "team", "labels": {"istio-aux.io/proxy": "node"}}})],
            has_node_runtime_class: Some(true),
            node_agents: Some(vec![json!({"status": {"numberReady": 2, "desiredNumberScheduled": 2}})]),
            ..Snapshot::default()
        }
    }

    #[test]
    fn namespace_with_everything_is_ok() {
        let message = "namespaces whose pods use the node's proxies: team";
        assert_eq!(of(&ready()), [Finding::ok(Id::NodeProxy, message)]);
    }

    #[test]
    fn each_missing_part_is_a_problem() {
        type Change = fn(&mut Snapshot);
        let no_entry = "the label istio-aux.io/proxy does nothing: the webhook's configuration has no entry for it";
        let cases: [(Change, &str); 6] = [
            (|s| s.configurations = Some(Vec::new()), no_entry),
            (|s| s.configurations.as_mut().unwrap()[0]["webhooks"] = json!([]), no_entry),
            (
                |s| s.has_node_runtime_class = Some(false),
                "there is no RuntimeClass istio-aux, so pods with istio-aux.io/proxy are rejected",
            ),
            (|s| s.node_agents = Some(Vec::new()), "no node has the node agent; pods wait for it"),
            (
                |s| s.node_agents.as_mut().unwrap()[0]["status"]["numberReady"] = json!(1),
                "the node agent is ready on 1 of 2 nodes; pods wait for it on the others",
            ),
            (
                |s| s.namespaces[0]["metadata"]["labels"]["istio-aux.io/proxy"] = json!("Node"),
                "namespace team: label istio-aux.io/proxy: invalid value \"Node\"; use node",
            ),
        ];
        for (change, message) in cases {
            let mut snapshot = ready();
            change(&mut snapshot);
            let lines: Vec<String> = of(&snapshot).iter().map(Finding::line).collect();
            assert_eq!(lines, [format!("problem node-proxy: {message}")]);
        }
    }

    #[test]
    fn unread_or_unlabelled_has_no_finding() {
        let without_label = Snapshot { namespaces: Vec::new(), has_node_runtime_class: Some(false), ..ready() };
        assert_eq!(of(&without_label), []);
        let unreadable = Snapshot { configurations: None, has_node_runtime_class: None, node_agents: None, ..ready() };
        assert_eq!(of(&unreadable), []);
    }
}
