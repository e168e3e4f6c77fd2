//! The OCI spec of a proxy's container, and of the processes in it that read and change the pod's network. istiod says what runs
//! (`injector.rs`); it is confined as containerd confines a pod's containers.

use std::collections::BTreeMap;
use std::path::Path;

use cni::protocol::Sandbox;
use contract::names::{DEFAULT_STATUS_PORT, ISTIO_POD_DIR, PILOT_AGENT};
use serde_json::{Value, json};

use super::environment::environment;
use super::files::RULES;
use super::ids::user_of;
use super::ports::Ports;
use crate::injector::{Program, value_after};
use crate::pod::PodFacts;

/// The directory of the file of rules, which only root enters.
const RULES_DIRECTORY: &str = "/run/rules";
/// The most bytes of saved rules: what has `NET_ADMIN` in the pod may have added some, and they are written to the node's memory.
pub(super) const RULES_LIMIT: usize = 1 << 20;
const NETWORK_CAPABILITIES: &[&str] = &["CAP_NET_ADMIN", "CAP_NET_RAW"];
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What containerd 2.4.2 masks and filters in a container by default (`ctr containers create --seccomp`).
const CONTAINERD_DEFAULT: &str = include_str!("containerd-default.json");
/// The profile that containerd loads where the kernel has `AppArmor`.
const APPARMOR_PROFILE: &str = "cri-containerd.apparmor.d";
const APPARMOR_PROFILES: &str = "/proc/1/root/sys/kernel/security/apparmor/profiles";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: &[&str] = &["SCMP_ARCH_ARM", "SCMP_ARCH_AARCH64"];
#[cfg(not(target_arch = "aarch64"))]
const ARCHITECTURES: &[&str] = &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"];
/// Linux' limit for a host name is 64 (`__NEW_UTS_LEN`), the kubelet's for a pod's is 63.
const HOSTNAME_LIMIT: usize = 63;
/// Threads of Envoy and pilot-agent together are about 30.
const THREADS_LIMIT: u32 = 1024;

/// The shares of 100m of CPU, which Istio requests for a sidecar by default: a payload that computes is not to starve its proxy.
const SIDECARS_SHARES: u64 = 102;

/// Holds the node's paths for a container.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout<'a> {
    /// The root of Istio's proxy image.
    pub(super) root: &'a Path,
    /// The sandbox' directory.
    pub(super) files: &'a Path,
    /// The container's cgroup.
    pub(super) cgroup: &'a str,
    /// Is true if cgroups are those of version 2.
    pub(super) is_unified: bool,
}

/// Returns the spec of a proxy's container.
pub(super) fn proxy(sandbox: &Sandbox, pod: &PodFacts, program: &Program, ports: Ports, layout: Layout) -> Value {
    let user = user_of(&sandbox.id);
    let writable = |destination| writable(destination, user);
    let mut mounts = vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        // For the lock of iptables: only root writes to it. The image's /var/run may be a link to it.
        mount("/run", "tmpfs", &["nosuid", "nodev", "noexec", "mode=0755", "size=1m"]),
        bound(&layout.files.join(RULES), RULES_DIRECTORY, "rw"),
    ];
    mounts.extend(["/tmp", "/etc/istio/proxy", "/var/lib/istio/data"].map(writable));
    mounts.extend(["/var/run/secrets/workload-spiffe-uds", "/var/run/secrets/credential-uds"].map(writable));
    for (source, destination) in [
        ("certificate", "/var/run/secrets/workload-spiffe-credentials"),
        ("pod", ISTIO_POD_DIR),
        ("resolv.conf", "/etc/resolv.conf"),
        ("hosts", "/etc/hosts"),
    ] {
        mounts.push(bound(&layout.files.join(source), destination, "ro"));
    }
    let environment = environment(pod, &program.environment, ports);
    let mut default: Value = serde_json::from_str(CONTAINERD_DEFAULT).expect("the file is JSON");
    default["seccomp"]["architectures"] = json!(ARCHITECTURES);
    let mut spec = json!({
        "ociVersion": "1.0.2",
        "process": process(user, &[], &pilot_agent(&program.args), environment),
        "root": {"path": layout.root, "readonly": true},
        "hostname": hostname(&sandbox.name),
        "mounts": mounts,
        "linux": {
            "cgroupsPath": layout.cgroup,
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "pids": {"limit": THREADS_LIMIT},
                "cpu": {"shares": pod.cpu_shares.max(SIDECARS_SHARES)},
            },
            "namespaces": [
                {"type": "network", "path": sandbox.netns},
                {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
            ],
            "maskedPaths": default["maskedPaths"],
            "readonlyPaths": default["readonlyPaths"],
            "seccomp": default["seccomp"],
        },
    });
    spec["process"]["oomScoreAdj"] = oom_score_adj(&pod.qos_class).into();
    if let Some(bytes) = pod.memory {
        spec["linux"]["resources"]["memory"] = json!({"limit": bytes});
        if layout.is_unified {
            // No swap besides, as the kubelet gives containers none by default. With version 1 not each kernel counts it.
            spec["linux"]["resources"]["memory"]["swap"] = bytes.into();
        }
    }
    spec
}

/// Returns the process that redirects the pod's traffic to the proxy, and captured DNS that goes to the container's name servers.
pub(super) fn redirect(sandbox: &Sandbox, program: &Program) -> Value {
    let mut args = pilot_agent(&program.args);
    let user = user_of(&sandbox.id).to_string();
    match value_after(&mut args, "-u") {
        Some(rendered) => *rendered = user,
        // By default it would be Istio's own, which this proxy does not have.
        None => args.extend(["-u".to_owned(), user]),
    }
    // The list has the mesh's status port. The kubelet and Prometheus use the default one here.
    let status = DEFAULT_STATUS_PORT.to_string();
    if let Some(excluded) = value_after(&mut args, "-d").filter(|list| !list.split(',').any(|port| port == status)) {
        excluded.push(',');
        excluded.push_str(&status);
    }
    let mut environment = program.environment.clone();
    // Istio 1.22 writes its rules to a file, and /tmp is the proxy's.
    environment.insert("TMPDIR".to_owned(), "/run".to_owned());
    process(0, NETWORK_CAPABILITIES, &args, environment)
}

/// Returns the process by which `iptables`, or another such program, writes the rules of the pod's network to the file.
pub(super) fn save_rules(program: &str) -> Value {
    let mut process = with_rules(&[&format!("{program}-save"), "--file"]);
    process["rlimits"] = json!([{"type": "RLIMIT_FSIZE", "hard": RULES_LIMIT, "soft": RULES_LIMIT}]);
    process
}

/// Returns the process by which that program applies the rules of the file to the pod's network.
pub(super) fn apply_rules(program: &str) -> Value {
    with_rules(&[&format!("{program}-restore"), "--noflush"])
}

fn with_rules(command: &[&str]) -> Value {
    let file = format!("{RULES_DIRECTORY}/{RULES}");
    let args: Vec<_> = command.iter().map(ToString::to_string).chain([file]).collect();
    process(0, NETWORK_CAPABILITIES, &args, BTreeMap::new())
}

fn pilot_agent(args: &[String]) -> Vec<String> {
    std::iter::once(PILOT_AGENT.to_owned()).chain(args.iter().cloned()).collect()
}

fn process(user: u32, capabilities: &[&str], args: &[String], mut environment: BTreeMap<String, String>) -> Value {
    environment.insert("PATH".to_owned(), PATH.to_owned());
    let environment: Vec<_> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut process = json!({
        "user": {"uid": user, "gid": user},
        "args": args,
        "env": environment,
        "cwd": "/",
        "noNewPrivileges": true,
        "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
    });
    if has_apparmor_profile() {
        process["apparmorProfile"] = json!(APPARMOR_PROFILE);
    }
    process
}

/// Returns the score by which the kernel ends the proxy before the pod's payload, or as soon where that has the highest. The
/// kubelet gives payloads -997, 2 to 999, or 1000 (`pkg/kubelet/qos/policy.go`).
fn oom_score_adj(qos_class: &str) -> i32 {
    if qos_class == "Guaranteed" { -996 } else { 1000 }
}

/// Cuts a pod's name as the kubelet does (`truncatePodHostnameIfNeeded`).
fn hostname(pod: &str) -> &str {
    pod.get(..HOSTNAME_LIMIT).map_or(pod, |cut| cut.trim_end_matches(['-', '.']))
}

fn has_apparmor_profile() -> bool {
    let profiles = std::fs::read_to_string(APPARMOR_PROFILES).unwrap_or_default();
    profiles.lines().any(|line| line.split(' ').next() == Some(APPARMOR_PROFILE))
}

fn mount(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": kind, "options": options})
}

fn writable(destination: &str, user: u32) -> Value {
    let (uid, gid) = (format!("uid={user}"), format!("gid={user}"));
    mount(destination, "tmpfs", &["nosuid", "nodev", "noexec", "mode=0755", "size=64m", &uid, &gid])
}

fn bound(source: &Path, destination: &str, access: &str) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", access, "nosuid", "nodev"]})
}

#[cfg(test)]
mod tests {
    use contract::names::PROBES_ANNOTATION;

    use super::*;

    fn sandbox() -> Sandbox {
        Sandbox {
            netns: "/run/netns/x".into(),
            namespace: "team".into(),
            name: "train-0".into(),
            addresses: vec!["10.0.0.7".parse().unwrap()],
            ..Sandbox::default()
        }
    }

    fn pod() -> PodFacts {
        let probes = r#"{"/app-health/main/livez":{"tcpSocket":{"port":9}}}"#;
        PodFacts {
            qos_class: "Burstable".into(),
            memory: Some(128 << 20),
            cpu_shares: 10,
            ..PodFacts::annotated(PROBES_ANNOTATION, probes)
        }
    }

    fn layout() -> Layout<'static> {
        let (root, files) = (Path::new("/proxy/1"), Path::new("/run/istio-aux/sandbox/abc"));
        Layout { root, files, cgroup: "/kubepods/pod1/abc", is_unified: false }
    }

    fn program(args: &[&str], environment: &[(&str, &str)]) -> Program {
        Program {
            args: args.iter().map(ToString::to_string).collect(),
            environment: environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        }
    }

    fn proxy_of(revision: u32) -> Value {
        let config = r#"{"discoveryAddress":"istiod:15012","statusPort":15025,"proxyAdminPort":1}"#;
        let environment = [("PROXY_CONFIG", config), ("PATH", "/tmp"), ("GOMEMLIMIT", "1"), ("ISTIO_CPU_LIMIT", "2")];
        let program = program(&["proxy", "sidecar"], &environment);
        let mut spec = proxy(&sandbox(), &pod(), &program, Ports::of(revision), layout());
        // containerd's own, which a scenario compares.
        spec["linux"].as_object_mut().unwrap().remove("seccomp").unwrap();
        spec
    }

    #[test]
    fn proxy_has_pods_network_and_no_capabilities() {
        insta::assert_json_snapshot!(proxy_of(0));
    }

    #[test]
    fn next_proxy_differs_in_ports_only() {
        let [one, next] = [0, 1].map(|revision| proxy_of(revision).to_string());
        let ports = [("15000", "15100"), ("15020", "15120"), ("15021", "15121"), ("15090", "15190")];
        let next = next.replace(r#""DNS_PROXY_ADDR=localhost:15153","#, "");
        assert_eq!(ports.iter().fold(one, |text, (from, to)| text.replace(from, to)), next);
    }

    #[test]
    fn redirection_has_network_capabilities_only() {
        let program = program(&["istio-iptables", "-u", "1000", "-m", "REDIRECT"], &[("ISTIO_DUAL_STACK", "true")]);
        insta::assert_json_snapshot!(redirect(&sandbox(), &program));
    }

    #[test]
    fn program_that_saves_rules_writes_a_file_of_limited_size() {
        insta::assert_json_snapshot!([save_rules("iptables-nft"), apply_rules("ip6tables-legacy")]);
    }

    #[test]
    fn default_status_port_is_not_redirected() {
        for (rendered, expected) in [
            ("15090,15021,15020,9", "15090,15021,15020,9"),
            ("15090,15021,15025", "15090,15021,15025,15020"),
            ("15090,15021", "15090,15021,15020"),
        ] {
            let process = redirect(&sandbox(), &program(&["istio-iptables", "-d", rendered], &[]));
            assert_eq!(process["args"][3], expected);
        }
    }

    #[test]
    fn redirection_without_a_user_is_for_the_proxys() {
        let process = redirect(&sandbox(), &program(&["istio-iptables"], &[]));
        let user = user_of(&sandbox().id).to_string();
        assert_eq!(process["args"], json!([PILOT_AGENT, "istio-iptables", "-u", user]));
    }

    #[test]
    fn proxy_has_a_sidecars_share_of_cpu_at_least() {
        for (cpu_shares, expected) in [(0, 102), (10, 102), (2048, 2048)] {
            let pod = PodFacts { cpu_shares, ..pod() };
            let spec = proxy(&sandbox(), &pod, &Program::default(), Ports::of(0), layout());
            assert_eq!(spec["linux"]["resources"]["cpu"]["shares"], expected);
        }
    }

    #[test]
    fn proxy_has_no_swap_where_cgroups_are_of_version_2() {
        let memory = |is_unified| {
            let layout = Layout { is_unified, ..layout() };
            proxy(&sandbox(), &pod(), &Program::default(), Ports::of(0), layout)["linux"]["resources"]["memory"].take()
        };
        assert_eq!(memory(true), json!({"limit": 128 << 20, "swap": 128 << 20}));
        assert_eq!(memory(false), json!({"limit": 128 << 20}));
    }

    #[test]
    fn system_calls_are_filtered() {
        let spec = proxy(&sandbox(), &pod(), &Program::default(), Ports::of(0), layout());
        let seccomp = &spec["linux"]["seccomp"];
        assert_eq!(seccomp["defaultAction"], "SCMP_ACT_ERRNO");
        let allowed = seccomp["syscalls"].as_array().unwrap().iter().filter(|rule| rule["args"].is_null());
        let names: Vec<_> = allowed.flat_map(|rule| rule["names"].as_array().unwrap()).collect();
        assert!(names.contains(&&json!("epoll_wait")) && !names.contains(&&json!("unshare")));
    }

    #[test]
    fn proxy_ends_no_later_than_its_payload_without_memory() {
        assert_eq!(["Guaranteed", "Burstable", "BestEffort"].map(oom_score_adj), [-996, 1000, 1000]);
    }

    #[test]
    fn hostname_is_cut_as_the_kubelet_cuts_it() {
        let long = format!("{}-.b", "a".repeat(61));
        for (pod, expected) in [("train-0", "train-0"), (&long, &long[..61]), (&"a".repeat(253), &"a".repeat(63))] {
            assert_eq!(hostname(pod), expected);
        }
    }
}
