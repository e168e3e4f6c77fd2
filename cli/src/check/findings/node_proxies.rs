//! Proxies beside pods (docs/node.md): whether what a namespace's label asks for is there. Pure.

use contract::names::{NODE, NODE_RUNTIME_CLASS, PROXY_LABEL};
use serde_json::Value;

use super::super::finding::{Finding, Id};
use super::super::snapshot::{OURS, Snapshot};
use super::{items, name, some, text};
use crate::pods::label;

/// The path of the webhook configuration's entry for such pods.
const PATH: &str = "/mutate/node";

pub(super) fn of(snapshot: &Snapshot) -> Vec<Finding> {
    let (mut asking, mut findings) = (Vec::new(), Vec::new());
    for namespace in &snapshot.namespaces {
        match label(namespace, PROXY_LABEL) {
            None => {}
            Some(NODE) => asking.push(name(namespace)),
            Some(value) => findings.push(mistaken(name(namespace), value)),
        }
    }
    if !asking.is_empty() {
        let missing: Vec<_> =
            [entry(snapshot), runtime_class(snapshot), agent(snapshot)].into_iter().flatten().collect();
        let all_were_read = snapshot.configurations.is_some()
            && snapshot.has_node_runtime_class.is_some()
            && snapshot.node_agents.is_some();
        if missing.is_empty() && all_were_read {
            let message = format!("namespaces whose pods have their proxies beside them: {}", some(&asking));
            findings.push(Finding::ok(Id::NodeProxy, message));
        }
        findings.extend(missing);
    }
    findings
}

fn mistaken(namespace: &str, value: &str) -> Finding {
    let message = format!("namespace {namespace} has {PROXY_LABEL}={value}, and only {NODE} counts");
    Finding::problem(
        Id::NodeProxy,
        message,
        format!("kubectl label namespace {namespace} --overwrite {PROXY_LABEL}={NODE}"),
    )
}

fn entry(snapshot: &Snapshot) -> Option<Finding> {
    let mut ours = snapshot.configurations.as_ref()?.iter().filter(|configuration| name(configuration) == OURS);
    let has_entry =
        ours.any(|ours| items(&ours["webhooks"]).any(|entry| text(entry, "/clientConfig/service/path") == PATH));
    (!has_entry).then(|| {
        let message = format!("the label {PROXY_LABEL} does nothing: the webhook's configuration has no entry for it");
        Finding::problem(Id::NodeProxy, message, "NODE_PROXY=yes deploy/install (docs/node.md)")
    })
}

fn runtime_class(snapshot: &Snapshot) -> Option<Finding> {
    (snapshot.has_node_runtime_class == Some(false)).then(|| {
        let message = format!("there is no RuntimeClass {NODE_RUNTIME_CLASS}, so pods with {PROXY_LABEL} are refused");
        Finding::problem(Id::NodeProxy, message, "install the chart istio-aux-node (docs/node.md)")
    })
}

fn agent(snapshot: &Snapshot) -> Option<Finding> {
    let agents = snapshot.node_agents.as_ref()?;
    let count = |agent: &Value, field: &str| agent["status"][field].as_u64().unwrap_or_default();
    let (mut ready, mut wanted) = (0, 0);
    for agent in agents {
        ready += count(agent, "numberReady");
        wanted += count(agent, "desiredNumberScheduled");
    }
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

    use super::super::super::finding::Severity;
    use super::*;

    /// A cluster in which a namespace asks for such proxies, and has all that they need.
    fn ready() -> Snapshot {
        let entry = json!({"clientConfig": {"service": {"path": PATH}}});
        Snapshot {
            configurations: Some(vec![json!({"metadata": {"name": OURS}, "webhooks": [entry]})]),
            namespaces: vec![json!({"metadata": {"name": "team", "labels": {"istio-aux.io/proxy": "node"}}})],
            has_node_runtime_class: Some(true),
            node_agents: Some(vec![json!({"status": {"numberReady": 2, "desiredNumberScheduled": 2}})]),
            ..Snapshot::default()
        }
    }

    fn problems(snapshot: &Snapshot) -> Vec<String> {
        let findings = of(snapshot).into_iter();
        findings.filter(|finding| finding.severity == Severity::Problem).map(|finding| finding.message).collect()
    }

    #[test]
    fn a_namespace_that_has_all_it_asks_for_is_well() {
        let findings = of(&ready());
        assert_eq!(
            findings,
            [Finding::ok(Id::NodeProxy, "namespaces whose pods have their proxies beside them: team")]
        );
    }

    #[test]
    fn what_is_missing_is_a_problem_each() {
        let cases = [
            (
                Snapshot { configurations: Some(Vec::new()), ..ready() },
                "the label istio-aux.io/proxy does nothing: the webhook's configuration has no entry for it",
            ),
            (
                Snapshot { configurations: Some(vec![json!({"metadata": {"name": OURS}, "webhooks": []})]), ..ready() },
                "the label istio-aux.io/proxy does nothing: the webhook's configuration has no entry for it",
            ),
            (
                Snapshot { has_node_runtime_class: Some(false), ..ready() },
                "there is no RuntimeClass istio-aux, so pods with istio-aux.io/proxy are refused",
            ),
            (Snapshot { node_agents: Some(Vec::new()), ..ready() }, "no node has the node agent; pods wait for it"),
            (
                Snapshot {
                    node_agents: Some(vec![json!({"status": {"numberReady": 1, "desiredNumberScheduled": 2}})]),
                    ..ready()
                },
                "the node agent is ready on 1 of 2 nodes; pods wait for it on the others",
            ),
            (
                Snapshot {
                    namespaces: vec![json!({"metadata": {"name": "team", "labels": {"istio-aux.io/proxy": "Node"}}})],
                    ..ready()
                },
                "namespace team has istio-aux.io/proxy=Node, and only node counts",
            ),
        ];
        for (snapshot, message) in cases {
            assert_eq!(problems(&snapshot), [message]);
        }
    }

    #[test]
    fn what_nobody_asks_for_or_cannot_be_read_is_no_finding() {
        let nobody = Snapshot { namespaces: Vec::new(), has_node_runtime_class: Some(false), ..ready() };
        assert_eq!(of(&nobody), []);
        let unreadable = Snapshot { configurations: None, has_node_runtime_class: None, node_agents: None, ..ready() };
        assert_eq!(of(&unreadable), []);
    }
}
