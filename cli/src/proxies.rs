//! Lists the proxies that run beside pods, and prints their logs, by the node agents' own program: each agent knows those of its node.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use contract::kind::PODS;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, ListParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use crate::check::NODE_AGENT;
use crate::read::{self, CLUSTER_ROLE_BINDINGS, account_of};

/// Binds the agents' account, and so names their namespace.
const BINDING: &str = "istio-aux-node";
/// The state of a proxy that a pod lacks.
const MISSING: &str = "missing";
/// Limits the agents that are asked at the same time.
const CONCURRENCY_LIMIT: usize = 16;
/// Limits the time of an agent's answer: a session that breaks may not end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Limits the bytes of an agent's answer. A proxy's log has 20 MiB at most.
const ANSWER_LIMIT: u64 = 32 << 20;

/// Describes a proxy, as its node's agent prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Proxy {
    pub(crate) pod: String,
    #[serde(default)]
    pub(crate) node: String,
    pub(crate) state: String,
    pub(crate) certificate_expires_in_seconds: Option<u64>,
    pub(crate) image: String,
    pub(crate) sandbox: String,
}

/// Holds what the agents have answered.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Proxies {
    pub(crate) proxies: Vec<Proxy>,
    /// Why an agent could not be asked.
    pub(crate) unreadable: Vec<String>,
}

/// Returns the agents of all nodes, or of one. `Err` if there is none.
async fn agents(client: &Client, node: Option<&str>) -> Result<Vec<Value>> {
    let binding = read::get(client, CLUSTER_ROLE_BINDINGS, None, BINDING).await?.unwrap_or_default();
    let mut agents = match account_of(&binding) {
        Some([namespace, _]) => {
            read::list(client, PODS, Some(&namespace), &ListParams::default().labels(NODE_AGENT)).await?
        }
        None => Vec::new(),
    };
    agents.retain(|pod| node.is_none_or(|node| node_of(pod) == node));
    if agents.is_empty() {
        let place = node.map_or_else(String::new, |node| format!(" on node {node}"));
        return Err(anyhow!("there is no node agent{place}; docs/node-operations.md says how to install it"));
    }
    Ok(agents)
}

/// Asks the agents of all nodes, or of one. `Err` if there is none.
pub(crate) async fn list(client: &Client, node: Option<&str>) -> Result<Proxies> {
    let agents = agents(client, node).await?;
    let answers = agents.iter().map(async |agent| (node_of(agent), ask(client, agent).await));
    let answers: Vec<_> = stream::iter(answers).buffer_unordered(CONCURRENCY_LIMIT).collect().await;
    let mut all = Proxies::default();
    for (node, answer) in answers {
        match answer {
            Ok(proxies) => all.proxies.extend(proxies.into_iter().map(|proxy| Proxy { node: node.clone(), ..proxy })),
            Err(error) => all.unreadable.push(format!("node {node}: {}", api::describe_error(error.as_ref()))),
        }
    }
    all.proxies.sort_by(|one, other| (&one.pod, &one.state).cmp(&(&other.pod, &other.state)));
    all.unreadable.sort();
    Ok(all)
}

/// Writes the log of a pod's proxy, by the agent of its node. `pod` is `NAMESPACE/NAME`, as in the list.
pub(crate) async fn write_logs(client: &Client, pod: &str, output: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
    let (namespace, name) = pod.split_once('/').with_context(|| format!("{pod} is not NAMESPACE/POD"))?;
    let object = read::get(client, PODS, Some(namespace), name).await?;
    let object = object.with_context(|| format!("there is no pod {pod}"))?;
    let node = object["spec"]["nodeName"].as_str().with_context(|| format!("{pod} is on no node yet"))?;
    let agent = agents(client, Some(node)).await?.swap_remove(0);
    let proxies = ask(client, &agent).await.with_context(|| format!("node {node}"))?;
    if !proxies.iter().any(|proxy| proxy.pod == pod && proxy.state != MISSING) {
        return Err(anyhow!("{pod} has no proxy beside it; `istio-aux proxies` lists all"));
    }
    run(client, &agent, &["/istio-aux-node", "logs", pod], output).await.with_context(|| format!("node {node}"))
}

/// Asks an agent for the proxies of its node.
async fn ask(client: &Client, agent: &Value) -> Result<Vec<Proxy>> {
    let mut answer = Vec::new();
    let response =
        timeout(ANSWER_TIMEOUT, run(client, agent, &["/istio-aux-node", "status", "--output=json"], &mut answer));
    response.await.unwrap_or_else(|_| Err(anyhow!("its agent has not answered within {ANSWER_TIMEOUT:?}")))?;
    serde_json::from_slice(&answer).context("its agent's answer")
}

/// Runs a command of an agent, and writes what it prints.
async fn run(client: &Client, agent: &Value, command: &[&str], output: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
    let [namespace, name] = ["namespace", "name"].map(|field| text(&agent["metadata"][field]));
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let parameters = AttachParams::default().container("agent").stderr(false);
    let mut session =
        pods.exec(&name, command.iter().copied(), &parameters).await.context("its agent cannot be asked")?;
    let printed = session.stdout().context("its agent has no output")?;
    match tokio::io::copy(&mut printed.take(ANSWER_LIMIT), output).await {
        // A reader such as `head` has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
        copied => copied.context("its agent's answer")?,
    };
    let status = session.take_status().context("its agent has no status")?.await.unwrap_or_default();
    if status.status.as_deref() != Some("Success") {
        return Err(anyhow!("its agent's program failed: {}", status.message.unwrap_or_default()));
    }
    Ok(())
}

fn node_of(agent: &Value) -> String {
    text(&agent["spec"]["nodeName"])
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use api::fake::{Answer, client};
    use serde_json::json;

    use super::*;

    fn binding() -> Answer {
        let binding = json!({"subjects": [{"name": "istio-aux-node", "namespace": "aux"}]});
        Answer::ok("GET /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/istio-aux-node", binding)
    }

    #[tokio::test]
    async fn pod_of_another_namespace_with_the_agents_label_is_not_asked() {
        let forged = json!({"metadata": {"namespace": "team", "name": "agent-1"}, "spec": {"nodeName": "node1"}});
        let everywhere = Answer::list("GET /api/v1/pods?", &[forged]);
        let (client, _) = client([binding(), everywhere, Answer::list("GET /api/v1/namespaces/aux/pods?", &[])]);
        let error = list(&client, None).await.unwrap_err().to_string();
        assert!(error.starts_with("there is no node agent; "), "{error}");
    }

    #[tokio::test]
    async fn log_is_that_of_a_pod_on_a_node() {
        let pending = json!({"metadata": {"namespace": "team", "name": "x"}, "spec": {}});
        let on_node = json!({"metadata": {"namespace": "team", "name": "y"}, "spec": {"nodeName": "node2"}});
        let (client, _) = client([
            Answer::failure("GET /api/v1/namespaces/team/pods/none", 404, "not found"),
            Answer::ok("GET /api/v1/namespaces/team/pods/x", pending),
            Answer::ok("GET /api/v1/namespaces/team/pods/y", on_node),
            binding(),
            Answer::list("GET /api/v1/namespaces/aux/pods?", &[]),
        ]);
        for (pod, expected) in [
            ("train-0", "train-0 is not NAMESPACE/POD"),
            ("team/none", "there is no pod team/none"),
            ("team/x", "team/x is on no node yet"),
            ("team/y", "there is no node agent on node node2; docs/node-operations.md says how to install it"),
        ] {
            let error = write_logs(&client, pod, &mut Vec::new()).await.unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[tokio::test]
    async fn agent_that_does_not_run_yet_is_named_with_the_servers_message() {
        let agent = json!({"metadata": {"namespace": "aux", "name": "agent-1"}, "spec": {"nodeName": "node1"}});
        let message = "container not found (\"agent\")";
        let exec = Answer::failure("GET /api/v1/namespaces/aux/pods/agent-1/exec?", 500, message);
        let (client, _) = client([binding(), Answer::list("GET /api/v1/namespaces/aux/pods?", &[agent]), exec]);
        let all = list(&client, None).await.unwrap();
        assert_eq!(all.unreadable, [format!("node node1: its agent cannot be asked: {message}")]);
    }
}
