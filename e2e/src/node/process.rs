//! A proxy's processes, and the pod's network, which they are in.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::thread;

use contract::names::PROXY_CONTAINER;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use super::{agent, containers_with, ctr, ctr_of_kubelet};
use crate::command::{printed, run};

/// Is a process of a pod's proxy, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyProcess(u32);

impl ProxyProcess {
    /// Returns pilot-agent and Envoy of the pod `NAMESPACE/NAME`.
    #[must_use]
    pub fn of(pod: &str) -> [Self; 2] {
        let all: Value = serde_json::from_str(&agent(&["status", "--output=json"])).expect("it is JSON");
        let proxy = all.as_array().into_iter().flatten().find(|proxy| proxy["pod"] == pod).expect("it has a proxy");
        let prefix = format!("{}-proxy-", proxy["sandbox"].as_str().expect("it has a sandbox"));
        let tasks = ctr(&["tasks", "ls", "-q"]);
        let task = tasks.lines().find(|id| id.starts_with(&prefix)).expect("it runs");
        Self::of_task(&ctr(&["tasks", "ps", task])).try_into().expect("there are two processes")
    }

    /// Returns pilot-agent of the sidecar in the pod `NAMESPACE/NAME`.
    #[must_use]
    pub fn of_sidecar(pod: &str) -> Self {
        Self::of_container(pod, PROXY_CONTAINER)
    }

    /// Returns the first process of a container in the pod `NAMESPACE/NAME`.
    #[must_use]
    pub fn of_container(pod: &str, container: &str) -> Self {
        let (namespace, name) = pod.split_once('/').expect("it has a namespace");
        let id = containers_with(&[("pod.namespace", namespace), ("pod.name", name), ("container.name", container)]);
        Self::of_task(&ctr_of_kubelet(&["tasks", "ps", id.trim()])).remove(0)
    }

    /// Reads the processes of a task, the oldest first: pilot-agent starts Envoy.
    fn of_task(table: &str) -> Vec<Self> {
        let pids = table.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok().map(Self));
        let mut pids: Vec<_> = pids.collect();
        pids.sort_by_cached_key(|process| process.started());
        pids
    }

    /// Returns when it was started, in ticks since the boot.
    fn started(self) -> u64 {
        let stat = self.file("stat");
        let (_, after_name) = stat.rsplit_once(')').expect("it has the name in parentheses");
        after_name.split_whitespace().nth(19).and_then(|field| field.parse().ok()).expect("it is a number")
    }

    /// Returns the path of a file in the process' directory in `/proc`.
    #[must_use]
    pub fn path(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }

    /// Returns a file of the process' directory in `/proc`; a space stands for each NUL.
    #[must_use]
    pub fn file(self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("the process runs").replace('\0', " ")
    }

    /// Returns a line of the process' status without its name.
    #[must_use]
    pub fn status(self, name: &str) -> String {
        let status = self.file("status");
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.expect("the kernel reports it").trim().to_owned()
    }

    /// Returns the environment, by the variables' names.
    #[must_use]
    pub fn environment(self) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.path("environ")).expect("the process runs");
        let pairs = text.split('\0').filter_map(|variable| variable.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Stops it, as a process that hangs.
    pub fn stop(self) {
        printed(&run("kill", &["-STOP", &self.0.to_string()], ""));
    }

    /// Returns false once it has ended.
    #[must_use]
    pub fn exists(self) -> bool {
        self.path("status").exists()
    }

    /// Returns the memory limit of its cgroup, in bytes.
    #[must_use]
    pub fn memory_limit(self) -> String {
        self.file_of_cgroup("memory", "memory.limit_in_bytes", "memory.max")
    }

    /// Returns the share of CPU of its cgroup: 1024 of version 1, or 39 of version 2, for a whole one.
    #[must_use]
    pub fn cpu_share(self) -> u32 {
        self.file_of_cgroup("cpu", "cpu.shares", "cpu.weight").parse().expect("it is a number")
    }

    /// Returns what a file of its cgroup has, of version 1 with this controller, or of version 2.
    fn file_of_cgroup(self, controller: &str, version_1: &str, version_2: &str) -> String {
        let cgroups = self.file("cgroup");
        let files = cgroups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            if controllers.is_empty() {
                return Some(format!("/sys/fs/cgroup{path}/{version_2}"));
            }
            let has_it = controllers.split(',').any(|one| one == controller);
            has_it.then(|| format!("/sys/fs/cgroup/{controllers}{path}/{version_1}"))
        });
        let mut values = files.filter_map(|file| fs::read_to_string(file).ok());
        values.next().expect("its cgroup has the controller").trim().to_owned()
    }

    /// Returns the processes that listen on a port of the pod's network.
    #[must_use]
    pub fn listeners(self, port: u16) -> Vec<Self> {
        let sockets = self.in_network(&format!("ss -Hltnp 'sport = :{port}'"), "");
        let numbers = sockets.split("pid=").skip(1).filter_map(|text| text.split(',').next()?.parse().ok());
        let mut processes: Vec<u32> = numbers.collect();
        processes.sort_unstable();
        processes.dedup();
        processes.into_iter().map(Self).collect()
    }

    /// Returns the firewall rules of the pod's network, of each `iptables`.
    #[must_use]
    pub fn rules(self) -> Vec<String> {
        let programs = ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"];
        let rules = programs.map(|program| self.in_network(&format!("{program}-save"), "")).concat();
        let user = self.status("Uid").split('\t').next().expect("it has one").to_owned();
        rules.lines().filter(|line| line.starts_with("-A ")).map(|line| line.replace(&user, "proxy")).collect()
    }

    /// Has the pod's network the same firewall rules by `iptables-legacy` in place of `iptables-nft`.
    pub fn move_rules_to_legacy(self) {
        for family in ["ip", "ip6"] {
            self.in_network(&format!("{family}tables-nft-save | {family}tables-legacy-restore"), "");
            let flush = |table| format!("{family}tables-nft -t {table} -F && {family}tables-nft -t {table} -X");
            self.in_network(&["nat", "raw"].map(flush).join(" && "), "");
        }
    }

    /// Adds as many firewall rules to the pod's network.
    pub fn add_rules(self, count: usize) {
        let rules = "-A FILL -s 192.0.2.1/32 -j ACCEPT\n".repeat(count);
        self.in_network("iptables-nft-restore --noflush", &format!("*filter\n:FILL - [0:0]\n{rules}COMMIT\n"));
    }

    /// Removes these.
    pub fn remove_rules(self) {
        self.in_network("iptables-nft -F FILL", "");
    }

    /// Runs a script in the pod's network, and returns what it printed.
    fn in_network(self, script: &str, input: &str) -> String {
        printed(&run("nsenter", &["-t", &self.0.to_string(), "-n", "sh", "-c", script], input))
    }

    /// Opens a UDP socket in the pod's network.
    #[must_use]
    pub fn udp_socket(self) -> UdpSocket {
        let network = fs::File::open(self.path("ns/net")).expect("the process runs");
        let open = move || {
            setns(network, CloneFlags::CLONE_NEWNET).expect("this process is root");
            UdpSocket::bind("[::]:0").expect("there is a free port")
        };
        // The thread's network is another one from then on.
        thread::spawn(open).join().expect("it opens a socket")
    }
}
