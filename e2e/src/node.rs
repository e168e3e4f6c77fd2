//! The one node from outside: its proxies and its agent.

use std::fs;
use std::path::PathBuf;

use crate::command::{printed, run};
use crate::kubectl::{kubectl, wait_for_rollout};

const AGENT: [&str; 2] = ["-n", "istio-aux-node"];
/// The socket of the one-node cluster's containerd.
const SOCKET: &str = "/run/istio-aux-cluster/containerd.sock";
const DAEMON_SET: &str = "daemonset/istio-aux-node";

/// Returns the directory of the one-node cluster's state.
pub(crate) fn state_directory() -> PathBuf {
    std::env::var_os("ONE_NODE_CLUSTER").expect("it is run by `cluster run`").into()
}

/// Returns one of the chart's values for this node.
fn value(name: &str) -> String {
    let values = fs::read_to_string(state_directory().join("node-values.yaml")).expect("the component node is there");
    let of_name = |line: &str| line.trim().strip_prefix(name)?.strip_prefix(": ").map(str::to_owned);
    values.lines().find_map(of_name).expect("it has the value")
}

/// Runs containerd's own client in the proxies' namespace.
fn ctr(words: &[&str]) -> String {
    ctr_in("istio-aux", words)
}

/// Runs containerd's own client in the kubelet's namespace.
pub fn ctr_of_kubelet(words: &[&str]) -> String {
    ctr_in("k8s.io", words)
}

fn ctr_in(namespace: &str, words: &[&str]) -> String {
    printed(&run("ctr", &[&["-a", SOCKET, "-n", namespace], words].concat(), ""))
}

/// Returns the node's containers, files and cgroups of proxies.
pub fn proxies() -> Vec<String> {
    let files = run("find", &["/run/istio-aux/sandbox", "/var/log/istio-aux", "-mindepth", "1", "-maxdepth", "1"], "");
    let cgroups =
        run("find", &["/sys/fs/cgroup", "-type", "d", "(", "-name", "*-proxy-*", "-o", "-name", "*-redirect", ")"], "");
    let found = [ctr(&["containers", "ls", "-q"]), printed(&files), printed(&cgroups)];
    found.iter().flat_map(|output| output.lines().map(str::to_owned)).collect()
}

/// Kills the processes of all proxies.
pub fn kill_proxies() {
    for id in ctr(&["tasks", "ls", "-q"]).lines() {
        ctr(&["tasks", "kill", "--all", "--signal", "SIGKILL", id]);
    }
}

/// Runs the agent's program beside the agent.
pub fn agent(words: &[&str]) -> String {
    let exec = ["exec", DAEMON_SET, "--container=agent", "--", "/istio-aux-node"];
    kubectl(&[&AGENT[..], &exec, words].concat())
}

/// Returns the agent's log since its start.
pub fn agent_log() -> String {
    kubectl(&[&AGENT[..], &["logs", DAEMON_SET, "--container=agent"]].concat())
}

/// Keeps the agent off the node until it is dropped.
pub struct WithoutAgent;

impl WithoutAgent {
    /// Ends the agent.
    #[must_use]
    pub fn begin() -> Self {
        select_nodes(r#"{"istio-aux.io/none": "yes"}"#);
        let wait = ["wait", "--for=delete", "pod", "--selector=app.kubernetes.io/name=istio-aux-node", "--timeout=60s"];
        kubectl(&[&AGENT[..], &wait].concat());
        Self
    }
}

impl Drop for WithoutAgent {
    fn drop(&mut self) {
        select_nodes(r#"{"istio-aux.io/none": null}"#);
        wait_for_rollout(AGENT[1], DAEMON_SET);
    }
}

fn select_nodes(selector: &str) {
    let patch = format!(r#"{{"spec": {{"template": {{"spec": {{"nodeSelector": {selector}}}}}}}}}"#);
    kubectl(&[&AGENT[..], &["patch", "daemonset", "istio-aux-node", "--type=merge", "--patch", &patch]].concat());
}

/// Deletes the agent's pod without grace; the `DaemonSet` makes another.
pub fn kill_agent() {
    let words = ["delete", "pod", "--selector=app.kubernetes.io/name=istio-aux-node", "--grace-period=0", "--force"];
    kubectl(&[&AGENT[..], &words].concat());
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
        let name = format!("{}-next", proxy_image());
        ctr_of_kubelet(&["images", "tag", "--force", &proxy_image(), &name]);
        Self::install_other(name)
    }

    /// Upgrades to an image.
    #[must_use]
    pub fn install_other(name: String) -> Self {
        set_proxy_image(&name);
        Self { name }
    }
}

impl Drop for NextImage {
    fn drop(&mut self) {
        set_proxy_image(&proxy_image());
    }
}

fn set_proxy_image(name: &str) {
    let set = format!("proxyImage={name}");
    let chart = "helm/istio-aux-node";
    let words = ["upgrade", "istio-aux-node", chart, "-n", "istio-aux-node", "--reuse-values", "--set", &set];
    printed(&run("helm", &words, ""));
    wait_for_rollout(AGENT[1], DAEMON_SET);
}
