//! The OCI specs of a sandbox' containers: the proxy, and the short-lived ones that change the pod's network. istiod says what runs
//! in them (`injector.rs`); they are confined as containerd confines a pod's containers.

use std::collections::BTreeMap;
use std::path::Path;

use cni::protocol::Sandbox;
use serde_json::{Value, json};

use super::environment::environment;
use super::ids::user_of;
use super::ports::Ports;
use crate::injector::{Program, value_after};
use crate::pod::PodFacts;

/// The file of the rules in the container that saves or applies them.
const RULES: &str = "/tmp/rules";
/// The most bytes of saved rules: what has `NET_ADMIN` in the pod may have added some, and they are written to the node's memory.
pub(super) const RULES_LIMIT: usize = 1 << 20;
/// Limits the bytes of memory of the programs that read and change rules, where the pod's overhead has no limit.
const TOOL_MEMORY_LIMIT: u64 = 128 << 20;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PILOT_AGENT: &str = "/usr/local/bin/pilot-agent";
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

/// Holds the node's paths for a container.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout<'a> {
    /// The root of Istio's proxy image.
    pub(super) root: &'a Path,
    /// The sandbox' directory.
    pub(super) files: &'a Path,
    /// The container's cgroup.
    pub(super) cgroup: &'a str,
}

/// Returns the proxy's spec.
pub(super) fn proxy(sandbox: &Sandbox, pod: &PodFacts, program: &Program, ports: Ports, layout: Layout) -> Value {
    let user = user_of(&sandbox.id);
    let writable = |destination| writable(destination, user);
    let mut mounts = system_mounts();
    mounts.extend(["/tmp", "/etc/istio/proxy", "/var/lib/istio/data"].map(writable));
    mounts.extend(["/var/run/secrets/workload-spiffe-uds", "/var/run/secrets/credential-uds"].map(writable));
    mounts.push(bound(&layout.files.join("certificate"), "/var/run/secrets/workload-spiffe-credentials"));
    mounts.push(bound(&layout.files.join("pod"), "/etc/istio/pod"));
    mounts.push(bound(&layout.files.join("resolv.conf"), "/etc/resolv.conf"));
    mounts.push(bound(&layout.files.join("hosts"), "/etc/hosts"));
    let environment = environment(pod, &program.environment, ports);
    container(sandbox, pod, layout, user, pod.memory, &[], &pilot_agent(&program.args), environment, &mounts)
}

/// Returns the spec of the container that redirects the pod's traffic to the proxy, and ends.
pub(super) fn redirect(sandbox: &Sandbox, pod: &PodFacts, program: &Program, layout: Layout) -> Value {
    let mut args = pilot_agent(&program.args);
    let user = user_of(&sandbox.id).to_string();
    match value_after(&mut args, "-u") {
        Some(rendered) => *rendered = user,
        // By default it would be Istio's own, which this proxy does not have.
        None => args.extend(["-u".to_owned(), user]),
    }
    // It redirects DNS that goes to these name servers.
    let resolver = bound(&layout.files.join("resolv.conf"), "/etc/resolv.conf");
    network_tool(sandbox, pod, layout, &args, program.environment.clone(), resolver)
}

/// Returns the spec of the container in which `iptables`, or another such program, writes the rules of the pod's network to a file.
pub(super) fn save_rules(sandbox: &Sandbox, pod: &PodFacts, file: &Path, program: &str, layout: Layout) -> Value {
    let args = [format!("{program}-save"), "--file".to_owned(), RULES.to_owned()];
    let mut file = bound(file, RULES);
    file["options"] = json!(["rbind", "rw", "nosuid", "nodev"]);
    let mut spec = network_tool(sandbox, pod, layout, &args, BTreeMap::new(), file);
    spec["process"]["rlimits"] = json!([{"type": "RLIMIT_FSIZE", "hard": RULES_LIMIT, "soft": RULES_LIMIT}]);
    spec
}

/// Returns the spec of the container in which that program applies rules to the pod's network.
pub(super) fn apply_rules(sandbox: &Sandbox, pod: &PodFacts, rules: &Path, program: &str, layout: Layout) -> Value {
    let args = [format!("{program}-restore"), "--noflush".to_owned(), RULES.to_owned()];
    network_tool(sandbox, pod, layout, &args, BTreeMap::new(), bound(rules, RULES))
}

fn pilot_agent(args: &[String]) -> Vec<String> {
    std::iter::once(PILOT_AGENT.to_owned()).chain(args.iter().cloned()).collect()
}

fn network_tool(
    sandbox: &Sandbox,
    pod: &PodFacts,
    layout: Layout,
    args: &[String],
    environment: BTreeMap<String, String>,
    file: Value,
) -> Value {
    let mut mounts = system_mounts();
    mounts.push(mount("/tmp", "tmpfs", &["nosuid", "nodev", "size=1m"]));
    // The lock of iptables.
    mounts.push(mount("/run", "tmpfs", &["nosuid", "nodev", "mode=0755", "size=1m"]));
    mounts.push(file);
    let memory = Some(pod.memory.unwrap_or(TOOL_MEMORY_LIMIT));
    container(sandbox, pod, layout, 0, memory, &["CAP_NET_ADMIN", "CAP_NET_RAW"], args, environment, &mounts)
}

#[expect(clippy::too_many_arguments, reason = "each is a part of the spec")]
fn container(
    sandbox: &Sandbox,
    pod: &PodFacts,
    layout: Layout,
    user: u32,
    memory: Option<u64>,
    capabilities: &[&str],
    args: &[String],
    mut environment: BTreeMap<String, String>,
    mounts: &[Value],
) -> Value {
    environment.insert("PATH".to_owned(), PATH.to_owned());
    let environment: Vec<_> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut default: Value = serde_json::from_str(CONTAINERD_DEFAULT).expect("the file is JSON");
    default["seccomp"]["architectures"] = json!(ARCHITECTURES);
    let mut spec = json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": args,
            "env": environment,
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "oomScoreAdj": oom_score_adj(&pod.qos_class),
        },
        "root": {"path": layout.root, "readonly": true},
        "hostname": hostname(&sandbox.name),
        "mounts": mounts,
        "linux": {
            "cgroupsPath": layout.cgroup,
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "pids": {"limit": THREADS_LIMIT},
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
    if let Some(bytes) = memory {
        spec["linux"]["resources"]["memory"] = json!({"limit": bytes});
    }
    if has_apparmor_profile() {
        spec["process"]["apparmorProfile"] = json!(APPARMOR_PROFILE);
    }
    spec
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

fn system_mounts() -> Vec<Value> {
    vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ]
}

fn mount(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": kind, "options": options})
}

fn writable(destination: &str, user: u32) -> Value {
    let (uid, gid) = (format!("uid={user}"), format!("gid={user}"));
    mount(destination, "tmpfs", &["nosuid", "nodev", "noexec", "mode=0755", "size=64m", &uid, &gid])
}

fn bound(source: &Path, destination: &str) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "ro", "nosuid", "nodev"]})
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
        PodFacts {
            annotations: BTreeMap::from([(
                PROBES_ANNOTATION.into(),
                r#"{"/app-health/main/livez":{"tcpSocket":{"port":9}}}"#.into(),
            )]),
            qos_class: "Burstable".into(),
            memory: Some(128 << 20),
            ..PodFacts::default()
        }
    }

    fn layout() -> Layout<'static> {
        let (root, files) = (Path::new("/proxy/1"), Path::new("/run/istio-aux/sandbox/abc"));
        Layout { root, files, cgroup: "/kubepods/pod1/abc" }
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
        let mut spec = redirect(&sandbox(), &pod(), &program, layout());
        spec["linux"].as_object_mut().unwrap().remove("seccomp").unwrap();
        insta::assert_json_snapshot!(spec);
    }

    #[test]
    fn programs_that_read_rules_have_a_memory_limit() {
        for (memory, expected) in [(Some(64 << 20), 64 << 20), (None, TOOL_MEMORY_LIMIT)] {
            let spec = save_rules(&sandbox(), &PodFacts { memory, ..pod() }, Path::new("/rules"), "iptables", layout());
            assert_eq!(spec["linux"]["resources"]["memory"]["limit"], expected);
        }
    }

    #[test]
    fn redirection_without_a_user_is_for_the_proxys() {
        let spec = redirect(&sandbox(), &pod(), &program(&["istio-iptables"], &[]), layout());
        let user = user_of(&sandbox().id).to_string();
        assert_eq!(spec["process"]["args"], json!([PILOT_AGENT, "istio-iptables", "-u", user]));
    }

    #[test]
    fn system_calls_are_filtered_in_each_container() {
        let specs = [
            proxy(&sandbox(), &pod(), &Program::default(), Ports::of(0), layout()),
            redirect(&sandbox(), &pod(), &Program::default(), layout()),
            apply_rules(&sandbox(), &pod(), Path::new("/rules"), "iptables", layout()),
        ];
        for spec in specs {
            let seccomp = &spec["linux"]["seccomp"];
            assert_eq!(seccomp["defaultAction"], "SCMP_ACT_ERRNO");
            let allowed = seccomp["syscalls"].as_array().unwrap().iter().filter(|rule| rule["args"].is_null());
            let names: Vec<_> = allowed.flat_map(|rule| rule["names"].as_array().unwrap()).collect();
            assert!(names.contains(&&json!("epoll_wait")) && !names.contains(&&json!("unshare")));
        }
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
