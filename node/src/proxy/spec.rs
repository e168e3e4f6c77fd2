//! The OCI specs of a sandbox' containers: the proxy, and the short-lived ones that change the pod's network. istiod says what runs
//! in them (`injector.rs`); they are confined as containerd confines a pod's containers.

use std::collections::BTreeMap;
use std::path::Path;

use cni::protocol::Sandbox;
use contract::names::{PASSED_ANNOTATION_LIMIT, PROBES_ANNOTATION, SCRAPES_ANNOTATION};
use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

use super::ids::user_of;
use super::ports::{Ports, STANDARD};
use crate::injector::{Program, value_after};
use crate::pod::PodFacts;

/// The file of the rules in the container that applies them.
const RULES: &str = "/tmp/rules";
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
    container(sandbox, pod, layout, user, &[], &pilot_agent(&program.args), environment, &mounts)
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
    network_tool(sandbox, pod, layout, &args, program.environment.clone(), None)
}

/// Returns the spec of the container that writes the rules for IPv4 or IPv6 of the pod's network to a file, and ends.
pub(super) fn save_rules(sandbox: &Sandbox, pod: &PodFacts, file: &Path, is_ipv6: bool, layout: Layout) -> Value {
    let program = if is_ipv6 { "ip6tables-save" } else { "iptables-save" };
    let args = [program, "--file", RULES].map(str::to_owned);
    let mut file = bound(file, RULES);
    file["options"] = json!(["rbind", "rw", "nosuid", "nodev"]);
    network_tool(sandbox, pod, layout, &args, BTreeMap::new(), Some(file))
}

/// Returns the spec of the container that applies rules for IPv4 or IPv6 to the pod's network, and ends.
pub(super) fn apply_rules(sandbox: &Sandbox, pod: &PodFacts, rules: &Path, is_ipv6: bool, layout: Layout) -> Value {
    let program = if is_ipv6 { "ip6tables-restore" } else { "iptables-restore" };
    let args = [program, "--noflush", RULES].map(str::to_owned);
    network_tool(sandbox, pod, layout, &args, BTreeMap::new(), Some(bound(rules, RULES)))
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
    file: Option<Value>,
) -> Value {
    let mut mounts = system_mounts();
    mounts.push(mount("/tmp", "tmpfs", &["nosuid", "nodev", "size=1m"]));
    // The lock of iptables.
    mounts.push(mount("/run", "tmpfs", &["nosuid", "nodev", "mode=0755", "size=1m"]));
    mounts.extend(file);
    container(sandbox, pod, layout, 0, &["CAP_NET_ADMIN", "CAP_NET_RAW"], args, environment, &mounts)
}

/// Returns the proxy's environment: istiod's, and what is different outside of the pod.
fn environment(pod: &PodFacts, rendered: &BTreeMap<String, String>, ports: Ports) -> BTreeMap<String, String> {
    let config = rendered.get("PROXY_CONFIG").map_or("{}", String::as_str);
    let dns = (ports.dns != STANDARD.dns).then(|| format!("localhost:{}", ports.dns));
    let own = [
        // XDS with the pod's own certificate, so that the proxy needs no token.
        ("PROV_CERT", Some("/var/run/secrets/workload-spiffe-credentials".to_owned())),
        // Without it, pilot-agent asks the metadata servers of clouds before it starts Envoy.
        ("CLOUD_PLATFORM", Some("none".to_owned())),
        ("PROXY_CONFIG", Some(proxy_config(config, ports).to_string())),
        ("ENVOY_STATUS_PORT", Some(ports.readiness.to_string())),
        ("ENVOY_PROMETHEUS_PORT", Some(ports.metrics.to_string())),
        // The pilot-agent of Istio 1.22 serves istioctl on one more port, which two proxies of a pod cannot share.
        ("PROXY_XDS_DEBUG_VIA_AGENT", Some("false".to_owned())),
        ("DNS_PROXY_ADDR", dns.or(rendered.get("DNS_PROXY_ADDR").cloned())),
        ("ISTIO_KUBE_APP_PROBERS", probes(pod)),
        ("ISTIO_PROMETHEUS_ANNOTATIONS", scrapes(pod).or(rendered.get("ISTIO_PROMETHEUS_ANNOTATIONS")).cloned()),
        ("GOMEMLIMIT", pod.memory.map(|bytes| bytes.to_string())),
    ];
    let mut variables = rendered.clone();
    for (name, value) in own {
        match value {
            Some(value) => variables.insert(name.to_owned(), value),
            None => variables.remove(name),
        };
    }
    variables
}

/// Returns the probes that pilot-agent makes; `None` for those that would make it exit.
fn probes(pod: &PodFacts) -> Option<String> {
    let text = pod.annotations.get(PROBES_ANNOTATION)?;
    let probes: Option<BTreeMap<String, Probe>> = serde_json::from_str(text).ok();
    let probes = probes.filter(|probes| probes.iter().all(|(path, probe)| is_served(path, probe)));
    passed(PROBES_ANNOTATION, text, probes.is_some())?;
    // Without fields of other names: Go's JSON takes `GRPC` for `grpc`.
    serde_json::to_string(&probes).ok()
}

/// Returns true for a probe that pilot-agent serves: `validateAppKubeProber` in `pilot/cmd/pilot-agent/status/server.go`.
fn is_served(path: &str, probe: &Probe) -> bool {
    let is_known = match path.split('/').collect::<Vec<_>>()[..] {
        ["", "app-health", container, kind] => !container.is_empty() && ["livez", "readyz", "startupz"].contains(&kind),
        _ => false,
    };
    let http = probe.http_get.as_ref().map(|http| &http.port);
    let tcp = probe.tcp_socket.as_ref().map(|tcp| &tcp.port);
    let has_number = [http, tcp].into_iter().flatten().all(|port| matches!(port, IntOrString::Int(_)));
    let actions = [http.is_some(), tcp.is_some(), probe.grpc.is_some()];
    is_known && has_number && actions.into_iter().filter(|is_there| *is_there).count() == 1
}

/// Returns what pilot-agent scrapes of the application; `None` for what would make it exit: no JSON, or a port of its own.
fn scrapes(pod: &PodFacts) -> Option<&String> {
    let text = pod.annotations.get(SCRAPES_ANNOTATION)?;
    let scrapes: Option<BTreeMap<String, String>> = serde_json::from_str(text).ok();
    let port = scrapes.map(|scrapes| scrapes.get("port").map_or(Ok(80), |port| port.parse::<u16>()));
    let is_usable = port.is_some_and(|port| port.is_ok_and(|port| !Ports::has_pilot_agent(port)));
    passed(SCRAPES_ANNOTATION, text, is_usable)
}

/// Returns the text of an annotation that the webhook has written for pilot-agent. A pod may have written another.
fn passed<'a>(name: &str, text: &'a String, is_usable: bool) -> Option<&'a String> {
    if !is_usable || text.len() > PASSED_ANNOTATION_LIMIT {
        tracing::warn!("the annotation {name} of a pod is not the webhook's, and is left out");
        return None;
    }
    Some(text)
}

/// Returns the proxy's settings with its own ports.
fn proxy_config(config: &str, ports: Ports) -> Value {
    let mut config: Map<String, Value> = serde_json::from_str(config).unwrap_or_default();
    config.insert("statusPort".to_owned(), ports.status.into());
    config.insert("proxyAdminPort".to_owned(), ports.admin.into());
    config.into()
}

#[expect(clippy::too_many_arguments, reason = "each is a part of the spec")]
fn container(
    sandbox: &Sandbox,
    pod: &PodFacts,
    layout: Layout,
    user: u32,
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
    if let Some(bytes) = pod.memory {
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
    fn probes_of_other_origin_are_left_out() {
        let long = format!(r#"{{"/app-health/main/livez": "{}"}}"#, "a".repeat(PASSED_ANNOTATION_LIMIT));
        let annotated = |text: &str| {
            let annotations = BTreeMap::from([(PROBES_ANNOTATION.to_owned(), text.to_owned())]);
            PodFacts { annotations, ..pod() }
        };
        for probe in [r#"{"httpGet": {"port": 80}}"#, r#"{"tcpSocket": {"port": 80}}"#, r#"{"grpc": {"port": 80}}"#] {
            let of_probe = |probe: &str| format!(r#"{{"/app-health/main/livez": {probe}}}"#);
            let expected: Value = serde_json::from_str(&of_probe(probe)).unwrap();
            let passed =
                probes(&annotated(&of_probe(&probe.replacen('{', r#"{"HTTPGet": {"port": 1}, "#, 1)))).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&passed).unwrap(), expected);
        }
        let http = r#"{"httpGet": {"port": 80}}"#;
        let paths =
            ["/other", "/app-health/x", "/app-health//livez", "/app-health/main/other", "/app-health/a/b/livez"];
        let of_paths = paths.map(|path| format!(r#"{{"{path}": {http}}}"#));
        let bad = [
            "null",
            "{}",
            r#"{"httpGet": {"port": "web"}}"#,
            r#"{"tcpSocket": {"port": "web"}}"#,
            r#"{"httpGet": {"port": 80}, "grpc": {"port": 80}}"#,
            r#"{"httpGet": {"port": 80, "path": 1}}"#,
        ];
        let of_probes = bad.map(|probe| format!(r#"{{"/app-health/main/livez": {probe}}}"#));
        for text in of_paths.into_iter().chain(of_probes).chain([long, String::new(), "[]".to_owned()]) {
            assert_eq!(probes(&annotated(&text)), None, "{text}");
        }
    }

    #[test]
    fn scrapes_are_the_webhooks_or_else_istiods() {
        let rendered = BTreeMap::from([("ISTIO_PROMETHEUS_ANNOTATIONS".to_owned(), "istiod's".to_owned())]);
        let given = |text: &str| {
            let annotations = BTreeMap::from([(SCRAPES_ANNOTATION.to_owned(), text.to_owned())]);
            let variables = environment(&PodFacts { annotations, ..pod() }, &rendered, Ports::of(0));
            variables["ISTIO_PROMETHEUS_ANNOTATIONS"].clone()
        };
        for text in [r#"{"path":"/m","port":"8080"}"#, r#"{"scrape":"true"}"#] {
            assert_eq!(given(text), text);
        }
        let long = format!(r#"{{"path": "{}"}}"#, "a".repeat(PASSED_ANNOTATION_LIMIT));
        for text in ["", "[]", r#"{"port": 1}"#, r#"{"port": "web"}"#, r#"{"port": "15120"}"#, long.as_str()] {
            assert_eq!(given(text), "istiod's", "{text}");
        }
    }

    #[test]
    fn redirection_has_network_capabilities_only() {
        let program = program(&["istio-iptables", "-u", "1000", "-m", "REDIRECT"], &[("ISTIO_DUAL_STACK", "true")]);
        let mut spec = redirect(&sandbox(), &pod(), &program, layout());
        spec["linux"].as_object_mut().unwrap().remove("seccomp").unwrap();
        insta::assert_json_snapshot!(spec);
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
            apply_rules(&sandbox(), &pod(), Path::new("/rules"), false, layout()),
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
