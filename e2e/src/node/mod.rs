//! The node from outside: its proxies and its agent.

mod chart;
pub mod ended;
mod process;
mod prometheus;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::Namespace;
use crate::cluster::restart;
use crate::command::{printed, run};
use crate::harness::undo;

pub use chart::{
    NextImage, Restored, WithMetrics, WithoutAgent, agent, agent_log, agent_memory, daemon_set, kill_agent, proxies_in,
    proxy_image, roll_out, root_of, select_nodes, set_value, try_agent, unready, unready_in, until_all_serve,
    until_upgraded,
};
pub use process::ProxyProcess;
pub use prometheus::Prometheus;

/// The socket of the one-node cluster's containerd.
const SOCKET: &str = "/run/istio-aux-cluster/containerd.sock";

/// Returns the directory of the one-node cluster's state.
pub(crate) fn state_directory() -> PathBuf {
    std::env::var_os("ONE_NODE_CLUSTER").expect("it is run by `cluster run`").into()
}

/// Returns one of the chart's values for this node.
pub fn value(name: &str) -> String {
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
    printed(&try_ctr_in(namespace, words))
}

fn try_ctr_in(namespace: &str, words: &[&str]) -> Output {
    run("ctr", &[&["-a", SOCKET, "-n", namespace], words].concat(), "")
}

/// Gives an image a second name on each node.
pub fn tag_on_each_node(image: &str, name: &str) {
    let tag = ["images", "tag", "--force", image, name];
    ctr_of_kubelet(&tag);
    on_second_node(&[&["ctr", "-a", SOCKET, "-n", "k8s.io"], &tag[..]].concat());
}

/// Runs a command with the mounts of the second node, and returns what it printed.
fn on_second_node(command: &[&str]) -> String {
    let namespaces =
        fs::read_to_string(state_directory().join("pid/node2")).expect("the component second-node is there");
    let process = namespaces.split_whitespace().next().unwrap_or_default();
    printed(&run("nsenter", &[&["--target", process, "--mount", "--"], command].concat(), ""))
}

/// Returns the sandboxes that the second node has a proxy's container, directory or log of, sorted.
pub fn sandboxes_of_second_node() -> Vec<String> {
    let containers = on_second_node(&["ctr", "-a", SOCKET, "-n", "istio-aux", "containers", "ls", "--quiet"]);
    let files = on_second_node(&["ls", &format!("{RUN}/sandbox"), "/var/log/istio-aux"]);
    let ids = containers.lines().chain(files.lines()).filter_map(|name| name.split(['-', '.']).next());
    // `ls` prints the directories' names, too.
    let mut all: Vec<_> = ids.filter(|id| id.len() == 64).map(str::to_owned).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the ids of the kubelet's containers that have these labels.
fn containers_with(labels: &[(&str, &str)]) -> String {
    let each = labels.iter().map(|(name, value)| format!("labels.\"io.kubernetes.{name}\"=={value}"));
    ctr_of_kubelet(&["containers", "ls", "--quiet", &each.collect::<Vec<_>>().join(",")])
}

/// Kills the containers of this name in the pods of a namespace.
pub(crate) fn kill_containers(namespace: &str, container: &str) {
    for id in containers_with(&[("pod.namespace", namespace), ("container.name", container)]).lines() {
        // A container that has ended has no task.
        let _killed = try_ctr_in("k8s.io", &["tasks", "kill", "-s", "SIGKILL", id]);
    }
}

/// Returns the node's containers, files and cgroups of proxies.
pub fn proxies() -> Vec<String> {
    let files = find(&["/run/istio-aux/sandbox", "/var/log/istio-aux"], &["-mindepth", "1", "-maxdepth", "1"]);
    let names = ["-type", "d", "-name", "istio-aux-proxy-*"];
    let found = [ctr(&["containers", "ls", "-q"]), files, find(&["/sys/fs/cgroup"], &names)];
    found.iter().flat_map(|output| output.lines().map(str::to_owned)).collect()
}

/// Waits until the node has none of these.
pub async fn until_no_proxies(ns: &Namespace) {
    ns.until("the node as it was", async || proxies().is_empty().then_some(())).await;
}

/// Returns what `find` prints for these directories, without files that are deleted meanwhile.
fn find(directories: &[&str], expression: &[&str]) -> String {
    assert!(directories.iter().all(|directory| Path::new(directory).is_dir()), "{directories:?}");
    let output = run("find", &[directories, expression].concat(), "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.lines().all(|line| line.ends_with(": No such file or directory")), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns owner, group and mode of the agent's directory, and of all directories and files of certificates and firewall rules. The
/// group of a proxy is `proxy`.
pub fn owners() -> Vec<String> {
    let paths = ["(", "-path", RUN, "-o", "-path", "*/certificate*", "-o", "-path", "*/rules*", ")"];
    let found = find(&[RUN], &[&paths[..], &["-printf", "%U:%G %m\\n"]].concat());
    let named = |line: &str| {
        let group = line.split([':', ' ']).nth(1).expect("it is printed");
        let is_proxys = group.parse::<u32>().is_ok_and(is_user_of_proxy);
        if is_proxys { line.replace(group, "proxy") } else { line.to_owned() }
    };
    let mut owners: Vec<_> = found.lines().map(named).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Returns true if this user or group is of the proxies' range.
#[must_use]
pub fn is_user_of_proxy(id: u32) -> bool {
    (7 << 28..1 << 31).contains(&id)
}

/// Returns the certificates of a namespace's proxies, sorted.
pub fn certificates(namespace: &str) -> Vec<String> {
    let read = |directory: String| fs::read_to_string(format!("{directory}/cert-chain.pem"));
    let mut chains: Vec<_> = certificate_directories(namespace)
        .into_iter()
        .map(|directory| read(directory).expect("it has a certificate"))
        .collect();
    chains.sort_unstable();
    chains
}

/// Returns the directories with the certificates and keys of a namespace's proxies.
pub fn certificate_directories(namespace: &str) -> Vec<String> {
    let proxies = proxies_in(namespace);
    let sandboxes = proxies.iter().filter_map(|proxy| proxy["sandbox"].as_str());
    sandboxes.map(|sandbox| format!("{RUN}/sandbox/{sandbox}/certificate")).collect()
}

/// Returns containerd's major version, by its own client.
#[must_use]
pub fn containerds_major() -> u32 {
    let version = printed(&run("ctr", &["--version"], ""));
    let number = version.split_whitespace().last().unwrap_or_default().trim_start_matches('v');
    number.split('.').next().and_then(|major| major.parse().ok()).unwrap_or_else(|| panic!("a version: {version}"))
}

/// Returns how containerd confines a container by default, by its own client.
#[must_use]
pub fn containerds_default() -> Value {
    let id = "confined-by-default";
    ctr(&["containers", "create", "--rootfs", "--seccomp", "/", id, "/bin/true"]);
    let info = ctr(&["containers", "info", id]);
    ctr(&["containers", "rm", id]);
    let info: Value = serde_json::from_str(&info).expect("it is JSON");
    info["Spec"]["linux"].clone()
}

/// Has the logs of proxies on a disk of 4 MiB, until it is dropped.
pub struct SmallDisk;

/// The directory of the agent's socket and files.
const RUN: &str = "/run/istio-aux";
/// The directory of the deletions that the plugin could not report.
const TOMBSTONES: &str = "/run/istio-aux/tombstones";
/// The directory of the proxies' logs.
const LOGS: &str = "/var/log/istio-aux";

impl SmallDisk {
    /// Mounts the disk.
    #[must_use]
    pub fn mount() -> Self {
        printed(&run("mount", &["-t", "tmpfs", "-o", "size=4m", "istio-aux-test", LOGS], ""));
        Self
    }

    /// Fills it.
    pub fn fill(&self) {
        // It ends with an error, as there is no space for more.
        let full = run("dd", &["if=/dev/zero", &format!("of={LOGS}/full"), "bs=64k"], "");
        assert!(!full.status.success(), "the disk has an end");
    }

    /// Returns true if a log on it has this text.
    #[must_use]
    pub fn holds(&self, text: &str) -> bool {
        let logs = fs::read_dir(LOGS).expect("it is mounted").filter_map(Result::ok);
        logs.filter_map(|log| fs::read(log.path()).ok()).any(|log| String::from_utf8_lossy(&log).contains(text))
    }

    /// Makes room again.
    pub fn empty(&self) {
        fs::remove_file(format!("{LOGS}/full")).expect("the disk was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Loggers may write at this moment.
        undo(|| drop(printed(&run("umount", &["--lazy", LOGS], ""))));
    }
}

/// Hides the agent's socket from the plugin until it is dropped, and then deletes the tombstones that the plugin wrote instead.
pub struct WithoutSocket;

impl WithoutSocket {
    /// Moves the agent's socket away.
    #[must_use]
    pub fn begin() -> Self {
        fs::rename(format!("{RUN}/node.sock"), format!("{RUN}/away.sock")).expect("the agent listens");
        let this = Self;
        this.forget_deletions();
        this
    }

    /// Returns true if the plugin has written a tombstone.
    #[must_use]
    pub fn has_deletion(&self) -> bool {
        fs::read_dir(TOMBSTONES).is_ok_and(|mut tombstones| tombstones.next().is_some())
    }

    fn forget_deletions(&self) {
        if self.has_deletion() {
            fs::remove_dir_all(TOMBSTONES).expect("they are the plugin's");
        }
    }
}

impl Drop for WithoutSocket {
    fn drop(&mut self) {
        undo(|| {
            self.forget_deletions();
            fs::rename(format!("{RUN}/away.sock"), format!("{RUN}/node.sock")).expect("it was moved away");
        });
    }
}

/// Has containerd's handler lack its CNI directory, until it is dropped.
pub struct WithoutNetwork {
    handler: String,
}

impl WithoutNetwork {
    /// Restarts containerd with that handler.
    #[must_use]
    pub fn begin() -> Self {
        let handler = fs::read_to_string(handler()).expect("the component node is there");
        let without: Vec<_> = handler.lines().filter(|line| !line.contains("cni_conf_dir")).collect();
        let this = Self { handler: handler.clone() };
        set_handler(&without.join("\n"));
        this
    }
}

impl Drop for WithoutNetwork {
    fn drop(&mut self) {
        undo(|| set_handler(&self.handler));
    }
}

/// Returns the file of the handler's configuration, which `cluster restart` reads.
fn handler() -> PathBuf {
    state_directory().join("components/node")
}

fn set_handler(configuration: &str) {
    fs::write(handler(), format!("{}\n", configuration.trim_end())).expect("the file is ours");
    restart("containerd");
}

/// Kills the processes of all proxies.
pub fn kill_proxies() {
    for id in ctr(&["tasks", "ls", "-q"]).lines() {
        ctr(&["tasks", "kill", "--all", "--signal", "SIGKILL", id]);
    }
}
