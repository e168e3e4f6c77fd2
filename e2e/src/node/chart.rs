//! The node agent from outside: its program, its `DaemonSet`, and the chart's values.

use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use super::{ctr_of_kubelet, value};
use crate::Namespace;
use crate::command::{printed, run};
use crate::harness::undo;
use crate::kubectl::{Applied, kubectl, wait_for_rollout};
use crate::manifests::kind_of_any_object;
use crate::namespace::name_of;

const AGENT: [&str; 2] = ["-n", "istio-aux-node"];
const DAEMON_SET: &str = "daemonset/istio-aux-node";

/// Runs the agent's program in its container.
pub fn agent(words: &[&str]) -> String {
    printed(&try_agent(words))
}

/// Runs the agent's program in its container, whatever its exit status.
pub fn try_agent(words: &[&str]) -> Output {
    try_agent_in(DAEMON_SET, words)
}

fn try_agent_in(pod: &str, words: &[&str]) -> Output {
    let exec = ["exec", pod, "--container=agent", "--", "/istio-aux-node"];
    run("kubectl", &[&AGENT[..], &exec, words].concat(), "")
}

/// Returns why the agent is not ready, by the command of its probe; `None` where it is.
pub fn unready() -> Option<String> {
    unready_in(DAEMON_SET)
}

/// Returns why the agent of a pod is not ready; `None` where it is.
pub fn unready_in(pod: &str) -> Option<String> {
    let directories = [("cni-conf-dir", "ownDir"), ("bin-dir", "binDir"), ("conf-dir", "primaryDir")];
    let [own, programs, primary] = directories.map(|(option, name)| format!("--{option}={}", value(name)));
    let output = try_agent_in(pod, &["ready", &own, &programs, &primary]);
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns a field of the agent's `DaemonSet`.
pub fn daemon_set(path: &str) -> String {
    kubectl(&[&AGENT[..], &["get", DAEMON_SET, "--output", &format!("jsonpath={{{path}}}")]].concat())
}

/// Returns the agent's log since its start.
pub fn agent_log() -> String {
    kubectl(&[&AGENT[..], &["logs", DAEMON_SET, "--container=agent"]].concat())
}

/// Returns the bytes of the agent's working set, as the kubelet counts them.
pub fn agent_memory() -> u64 {
    let summary = kubectl(&["get", "--raw", "/api/v1/nodes/node1/proxy/stats/summary"]);
    let summary: Value = serde_json::from_str(&summary).expect("it is JSON");
    let pods = summary["pods"].as_array().expect("it is a list");
    let pod = pods.iter().find(|pod| pod["podRef"]["namespace"] == AGENT[1]).expect("it has the agent's pod");
    let agent = pod["containers"].as_array().into_iter().flatten().find(|container| container["name"] == "agent");
    agent.and_then(|agent| agent["memory"]["workingSetBytes"].as_u64()).expect("it is counted")
}

/// Keeps the agent off the node until it is dropped.
pub struct WithoutAgent;

impl WithoutAgent {
    /// Ends the agent.
    #[must_use]
    pub fn begin() -> Self {
        let this = Self;
        select_nodes(r#"{"istio-aux.io/none": "yes"}"#);
        let wait = ["wait", "--for=delete", "pod", "--selector=app.kubernetes.io/name=istio-aux-node", "--timeout=60s"];
        kubectl(&[&AGENT[..], &wait].concat());
        this
    }
}

impl Drop for WithoutAgent {
    fn drop(&mut self) {
        undo(|| {
            select_nodes(r#"{"istio-aux.io/none": null}"#);
            until_rolled_out();
        });
    }
}

/// Sets node labels that the agent's pods ask for, beside those they have asked for.
pub fn select_nodes(selector: &str) {
    let patch = format!(r#"{{"spec": {{"template": {{"spec": {{"nodeSelector": {selector}}}}}}}}}"#);
    kubectl(&[&AGENT[..], &["patch", "daemonset", "istio-aux-node", "--type=merge", "--patch", &patch]].concat());
}

/// Deletes the agent's pod without grace; the `DaemonSet` makes another.
pub fn kill_agent() {
    let words = ["delete", "pod", "--selector=app.kubernetes.io/name=istio-aux-node", "--grace-period=0", "--force"];
    kubectl(&[&AGENT[..], &words].concat());
}

/// Returns a namespace's proxies, as the agent knows them.
#[must_use]
pub fn proxies_in(namespace: &str) -> Vec<Value> {
    let mut proxies: Vec<Value> = serde_json::from_str(&agent(&["status", "--output=json"])).expect("it is JSON");
    let prefix = format!("{namespace}/");
    proxies.retain(|proxy| proxy["pod"].as_str().is_some_and(|pod| pod.starts_with(&prefix)));
    proxies
}

/// Returns how many of these proxies serve and are of an image.
fn serving(proxies: &[Value], image: &str) -> usize {
    let root = root_of(image);
    proxies.iter().filter(|proxy| proxy["image"] == root.as_str() && proxy["state"] == "running").count()
}

/// Waits until so many proxies of a namespace serve and are of this image.
pub async fn until_upgraded(ns: &Namespace, count: usize, image: &str, limit: Duration) {
    let is_so = async || (serving(&proxies_in(ns.name()), image) == count).then_some(());
    ns.until_within(limit, &format!("{count} proxies of {image}"), is_so).await;
}

/// Waits until a namespace has so many proxies, and all of them serve and are of this image.
pub async fn until_all_serve(ns: &Namespace, count: usize, image: &str, limit: Duration) {
    ns.until_within(limit, &format!("all proxies to be of {image}, and no other"), async || {
        let proxies = proxies_in(ns.name());
        (proxies.len() == count && serving(&proxies, image) == count).then_some(())
    })
    .await;
}

/// Returns the image of the mesh's proxies.
pub fn proxy_image() -> String {
    value("proxyImage")
}

/// Returns the name that the agent gives an image's directory.
pub fn root_of(image: &str) -> String {
    image.replace(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c), "_")
}

/// Keeps another image of the proxies installed, by the chart's `proxyImage`, until it is dropped.
pub struct NextImage {
    /// The image's name.
    pub name: String,
}

impl NextImage {
    /// Upgrades to the same image under another name.
    #[must_use]
    pub fn install() -> Self {
        let mut next = Self { name: proxy_image() };
        next.install_next();
        next
    }

    /// Upgrades to the same image under one more name.
    pub fn install_next(&mut self) {
        self.name = tagged_next(&self.name);
        roll_out(&with_proxy_image(&self.name));
    }

    /// Upgrades to another image, or goes back to it.
    #[must_use]
    pub fn of(name: String) -> Self {
        let next = Self { name };
        roll_out(&with_proxy_image(&next.name));
        next
    }

    /// Begins to upgrade to the same image under another name.
    #[must_use]
    pub fn begin_next() -> Self {
        Self::begin(tagged_next(&proxy_image()))
    }

    /// Begins to upgrade to an image.
    #[must_use]
    pub fn begin(name: String) -> Self {
        set_value(&with_proxy_image(&name));
        Self { name }
    }
}

/// Gives an image another name.
fn tagged_next(name: &str) -> String {
    let next = format!("{name}-next");
    ctr_of_kubelet(&["images", "tag", "--force", name, &next]);
    next
}

impl Drop for NextImage {
    fn drop(&mut self) {
        undo(|| roll_out(&with_proxy_image(&proxy_image())));
    }
}

/// Keeps the chart's `monitoring` enabled until it is dropped.
pub struct WithMetrics {
    address: SocketAddr,
    /// Go after the chart's objects of them.
    _kinds: Applied,
}

impl WithMetrics {
    const PORT: u16 = 15096;

    /// Enables it, with the counters of ended proxies that match.
    #[must_use]
    pub fn begin(ended_counters: &str) -> Self {
        let address = kubectl(&["get", "nodes", "--output", "jsonpath={.items[0].status.addresses[0].address}"]);
        let address = SocketAddr::new(address.parse().expect("it is an address"), Self::PORT);
        let kinds =
            ["PodMonitor", "PrometheusRule"].map(|kind| kind_of_any_object("monitoring.coreos.com", "v1", kind));
        let applied = Applied::new(&kinds);
        for kind in kinds {
            let name = format!("customresourcedefinition/{}", name_of(&kind));
            kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &name]);
        }
        // Where the agent does not become ready, dropping it takes this back.
        let metrics = Self { address, _kinds: applied };
        roll_out(&format!("monitoring.enabled=true,monitoring.endedCounters={ended_counters}"));
        metrics
    }

    /// Returns the address and port that Prometheus scrapes.
    #[must_use]
    pub fn target(&self) -> String {
        self.address.to_string()
    }

    /// Returns what the chart's `PodMonitor` says of the agent's metrics.
    #[must_use]
    pub fn endpoint(&self) -> Value {
        let words = ["get", "podmonitors.monitoring.coreos.com", "istio-aux-node", "--output=json"];
        let monitor: Value = serde_json::from_str(&kubectl(&[&AGENT[..], &words].concat())).expect("it is JSON");
        monitor["spec"]["podMetricsEndpoints"][0].clone()
    }

    /// Returns the samples.
    #[must_use]
    pub fn samples(&self) -> Vec<String> {
        printed(&run("curl", &["-sSfg", &format!("http://{}/metrics", self.address)], ""))
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for WithMetrics {
    fn drop(&mut self) {
        undo(|| roll_out("monitoring.enabled=false"));
    }
}

/// Runs something when it is dropped, and waits until the agents run as they are specified then.
pub struct Restored<F: Fn()>(pub F);

impl<F: Fn()> Drop for Restored<F> {
    fn drop(&mut self) {
        undo(|| {
            (self.0)();
            until_rolled_out();
        });
    }
}

fn until_rolled_out() {
    wait_for_rollout(AGENT[1], DAEMON_SET);
}

fn with_proxy_image(name: &str) -> String {
    format!("proxyImage={name}")
}

/// Sets one of the chart's values, and waits until the agents run with it.
pub fn roll_out(assignment: &str) {
    set_value(assignment);
    until_rolled_out();
}

/// Sets one of the chart's values, `NAME=VALUE`.
pub fn set_value(assignment: &str) {
    let chart = "helm/istio-aux-node";
    let words =
        ["upgrade", "istio-aux-node", chart, "-n", "istio-aux-node", "--reset-then-reuse-values", "--set", assignment];
    printed(&run("helm", &words, ""));
}
