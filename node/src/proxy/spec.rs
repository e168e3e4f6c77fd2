//! The OCI specs of a sandbox' containers: the proxy, and the short-lived ones that change the pod's network. They follow the
//! template of Istio's injector.

use std::path::Path;

use cni::protocol::Sandbox;
use contract::names::{PROBES_ANNOTATION, PROBES_ANNOTATION_LIMIT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};

use super::PROXY_USER;
use super::ports::{Ports, STANDARD};
use crate::pod::{MeshFacts, PodFacts};

/// The file of the rules in the container that applies them.
const RULES: &str = "/tmp/rules";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
pub(super) fn proxy(sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts, ports: Ports, layout: Layout) -> Value {
    let args = [
        "/usr/local/bin/pilot-agent",
        "proxy",
        "sidecar",
        "--domain",
        &format!("{}.svc.{}", sandbox.namespace, mesh.cluster_domain),
        "--proxyLogLevel=warning",
        "--proxyComponentLogLevel=misc:error",
        "--log_output_level=default:info",
    ]
    .map(str::to_owned);
    let mut mounts = system_mounts();
    mounts.extend(["/tmp", "/etc/istio/proxy", "/var/lib/istio/data"].map(writable));
    mounts.extend(["/var/run/secrets/workload-spiffe-uds", "/var/run/secrets/credential-uds"].map(writable));
    mounts.push(bound(&layout.files.join("certificate"), "/var/run/secrets/workload-spiffe-credentials"));
    mounts.push(bound(&layout.files.join("pod"), "/etc/istio/pod"));
    mounts.push(bound(&layout.files.join("resolv.conf"), "/etc/resolv.conf"));
    mounts.push(bound(&layout.files.join("hosts"), "/etc/hosts"));
    let environment = environment(sandbox, pod, mesh, ports);
    container(sandbox, layout, PROXY_USER, &[], &args, &environment, &mounts)
}

/// Returns the spec of the container that redirects the pod's traffic to the proxy, and ends.
pub(super) fn redirect(sandbox: &Sandbox, pod: &PodFacts, layout: Layout) -> Value {
    let annotation = |name: &str, default: &str| {
        let value = pod.annotations.get(&format!("traffic.sidecar.istio.io/{name}"));
        value.map_or_else(|| default.to_owned(), Clone::clone)
    };
    let mut not_redirected = format!("{},{},{}", STANDARD.metrics, STANDARD.readiness, STANDARD.status);
    let excluded = annotation("excludeInboundPorts", "");
    if !excluded.is_empty() {
        not_redirected = not_redirected + "," + &excluded;
    }
    let options = [
        ("-p", "15001".to_owned()),
        ("-z", "15006".to_owned()),
        ("-u", PROXY_USER.to_string()),
        ("-m", "REDIRECT".to_owned()),
        ("-i", annotation("includeOutboundIPRanges", "*")),
        ("-x", annotation("excludeOutboundIPRanges", "")),
        ("-b", annotation("includeInboundPorts", "*")),
        ("-d", not_redirected),
        ("-q", annotation("includeOutboundPorts", "")),
        ("-o", annotation("excludeOutboundPorts", "")),
    ];
    let command = ["/usr/local/bin/pilot-agent", "istio-iptables"].map(str::to_owned);
    let options = options.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    let args: Vec<_> = command.into_iter().chain(options).collect();
    network_tool(sandbox, layout, &args, None)
}

/// Returns the spec of the container that applies rules for IPv4 or IPv6 to the pod's network, and ends.
pub(super) fn apply_rules(sandbox: &Sandbox, rules: &Path, is_ipv6: bool, layout: Layout) -> Value {
    let program = if is_ipv6 { "ip6tables-restore" } else { "iptables-restore" };
    network_tool(sandbox, layout, &[program, "--noflush", RULES].map(str::to_owned), Some(bound(rules, RULES)))
}

fn network_tool(sandbox: &Sandbox, layout: Layout, args: &[String], file: Option<Value>) -> Value {
    let mut mounts = system_mounts();
    mounts.push(mount("/tmp", "tmpfs", &["nosuid", "nodev"]));
    // The lock of iptables.
    mounts.push(mount("/run", "tmpfs", &["nosuid", "nodev", "mode=0755"]));
    mounts.extend(file);
    container(sandbox, layout, 0, &["CAP_NET_ADMIN", "CAP_NET_RAW"], args, &[PATH.to_owned()], &mounts)
}

fn environment(sandbox: &Sandbox, pod: &PodFacts, mesh: &MeshFacts, ports: Ports) -> Vec<String> {
    let address = sandbox.addresses.first().map(ToString::to_string).unwrap_or_default();
    let mut variables = vec![
        PATH.to_owned(),
        "PILOT_CERT_PROVIDER=istiod".to_owned(),
        // XDS with the pod's own certificate, so that the proxy needs no token.
        "PROV_CERT=/var/run/secrets/workload-spiffe-credentials".to_owned(),
        // Without it, pilot-agent asks the metadata servers of clouds before it starts Envoy.
        "CLOUD_PLATFORM=none".to_owned(),
        format!("POD_NAME={}", sandbox.name),
        format!("POD_NAMESPACE={}", sandbox.namespace),
        format!("INSTANCE_IP={address}"),
        format!("SERVICE_ACCOUNT={}", pod.service_account),
        format!("PROXY_CONFIG={}", proxy_config(mesh, ports)),
        format!("ENVOY_STATUS_PORT={}", ports.readiness),
        format!("ENVOY_PROMETHEUS_PORT={}", ports.metrics),
        format!("TRUST_DOMAIN={}", mesh.trust_domain),
        format!("ISTIO_META_POD_PORTS={}", pod.ports),
        format!("ISTIO_META_APP_CONTAINERS={}", pod.containers),
        format!("ISTIO_META_CLUSTER_ID={}", mesh.cluster),
        format!("ISTIO_META_NODE_NAME={}", pod.node),
        "ISTIO_META_INTERCEPTION_MODE=REDIRECT".to_owned(),
        format!("ISTIO_META_MESH_ID={}", mesh.trust_domain),
    ];
    if let Some(owner) = &pod.owner {
        variables.push(format!("ISTIO_META_WORKLOAD_NAME={}", owner.name));
        variables.push(format!("ISTIO_META_OWNER={}", reference(owner, &sandbox.namespace)));
    }
    if let Some(probes) = probes(pod) {
        variables.push(format!("ISTIO_KUBE_APP_PROBERS={probes}"));
    }
    variables
}

/// Returns the reference to a pod's owner that Istio's injector writes.
fn reference(owner: &OwnerReference, namespace: &str) -> String {
    let OwnerReference { api_version, kind, name, .. } = owner;
    format!("kubernetes://apis/{api_version}/namespaces/{namespace}/{}s/{name}", kind.to_lowercase())
}

/// Returns the probes that pilot-agent makes; `None` for those that would make it exit.
fn probes(pod: &PodFacts) -> Option<&str> {
    let text = pod.annotations.get(PROBES_ANNOTATION)?;
    let probes: Option<Map<String, Value>> = serde_json::from_str(text).ok();
    let is_usable = probes.is_some_and(|probes| probes.keys().all(|path| path.starts_with("/app-health/")));
    if !is_usable || text.len() > PROBES_ANNOTATION_LIMIT {
        tracing::warn!("the annotation {PROBES_ANNOTATION} of a pod is not the webhook's, and is left out");
        return None;
    }
    Some(text)
}

/// Returns the mesh's settings with the proxy's own ports.
fn proxy_config(mesh: &MeshFacts, ports: Ports) -> Value {
    let mut config = mesh.proxy_config.clone();
    if let Some(config) = config.as_object_mut() {
        config.insert("statusPort".to_owned(), ports.status.into());
        config.insert("proxyAdminPort".to_owned(), ports.admin.into());
    }
    config
}

fn container(
    sandbox: &Sandbox,
    layout: Layout,
    user: u32,
    capabilities: &[&str],
    args: &[String],
    env: &[String],
    mounts: &[Value],
) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": args,
            "env": env,
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "root": {"path": layout.root, "readonly": true},
        "hostname": sandbox.name,
        "mounts": mounts,
        "linux": {
            "cgroupsPath": layout.cgroup,
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": [
                {"type": "network", "path": sandbox.netns},
                {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
            ],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"],
        },
    })
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

fn writable(destination: &str) -> Value {
    let (uid, gid) = (format!("uid={PROXY_USER}"), format!("gid={PROXY_USER}"));
    mount(destination, "tmpfs", &["nosuid", "nodev", "noexec", "mode=0755", &uid, &gid])
}

fn bound(source: &Path, destination: &str) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "ro", "nosuid", "nodev"]})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
            service_account: "trainer".into(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::from([
                ("traffic.sidecar.istio.io/excludeInboundPorts".into(), "9000".into()),
                (PROBES_ANNOTATION.into(), r#"{"/app-health/main/livez":{"tcpSocket":{"port":9}}}"#.into()),
            ]),
            node: "node1".into(),
            qos_class: "BestEffort".into(),
            containers: "main".into(),
            ports: json!([{"containerPort": 8080}]),
            owner: Some(OwnerReference {
                api_version: "batch/v1".into(),
                kind: "Job".into(),
                name: "train".into(),
                ..OwnerReference::default()
            }),
        }
    }

    fn layout() -> Layout<'static> {
        let (root, files) = (Path::new("/proxy/1"), Path::new("/run/istio-aux/sandbox/abc"));
        Layout { root, files, cgroup: "/kubepods/pod1/abc" }
    }

    fn proxy_of(revision: u32) -> Value {
        let mesh = MeshFacts {
            proxy_config: json!({"discoveryAddress": "istiod:15012"}),
            trust_domain: "td".into(),
            cluster: "Kubernetes".into(),
            cluster_domain: "cluster.local".into(),
        };
        proxy(&sandbox(), &pod(), &mesh, Ports::of(revision), layout())
    }

    #[test]
    fn proxy_has_pods_network_and_no_capabilities() {
        insta::assert_json_snapshot!(proxy_of(0));
    }

    #[test]
    fn next_proxy_differs_in_ports_only() {
        let [one, next] = [0, 1].map(|revision| proxy_of(revision).to_string());
        let ports = [("15000", "15100"), ("15020", "15120"), ("15021", "15121"), ("15090", "15190")];
        assert_eq!(ports.iter().fold(one, |text, (from, to)| text.replace(from, to)), next);
    }

    #[test]
    fn probes_of_other_origin_are_left_out() {
        let long = format!(r#"{{"/app-health/main/livez": "{}"}}"#, "a".repeat(PROBES_ANNOTATION_LIMIT));
        for text in ["", "[]", r#"{"/other": {}}"#, long.as_str()] {
            let annotations = BTreeMap::from([(PROBES_ANNOTATION.to_owned(), text.to_owned())]);
            assert_eq!(probes(&PodFacts { annotations, ..pod() }), None, "{text}");
        }
    }

    #[test]
    fn redirection_has_network_capabilities_only() {
        insta::assert_json_snapshot!(redirect(&sandbox(), &pod(), layout()));
    }
}
