//! The chart of the node agent (docs/node.md).

use std::process::Output;

use e2e::command::{printed, run_offline};
use e2e::rendered::{KUBERNETES, Objects, objects};
use serde_json::{Value, json};

const PROXY_IMAGE: &str = "--set=proxyImage=registry.example/istio/proxyv2:1";

fn template(values: &[&str]) -> Output {
    let words = ["template", "agent", "helm/istio-aux-node", "--namespace=istio-aux-node", KUBERNETES];
    run_offline("helm", &[&words, values].concat())
}

fn chart(values: &[&str]) -> Objects {
    objects(&printed(&template(&[&[PROXY_IMAGE], values].concat())))
}

#[test]
fn agent_may_only_read_pods_and_the_mesh_config() {
    let objects = chart(&["--set=istio.configMap=istio-canary"]);
    let rules: Vec<&Value> = objects.values().filter_map(|object| object.get("rules")).collect();
    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let mesh = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["istio-canary"], "verbs": ["get"]},
    ]);
    assert_eq!(rules, [&pods, &mesh]);
}

#[test]
fn runtime_class_schedules_pods_to_the_agents_nodes() {
    let objects = chart(&["--set=nodeSelector.proxies=beside"]);
    let selector = json!({"proxies": "beside"});
    assert_eq!(objects["RuntimeClass istio-aux"]["scheduling"]["nodeSelector"], selector);
    assert_eq!(objects["DaemonSet istio-aux-node"]["spec"]["template"]["spec"]["nodeSelector"], selector);
}

#[test]
fn containerds_socket_is_mounted_by_its_directory() {
    // A restart of containerd creates another socket.
    let objects = chart(&["--set=containerd.socket=/run/k3s/containerd/containerd.sock"]);
    let spec = &objects["DaemonSet istio-aux-node"]["spec"]["template"]["spec"];
    let volumes = spec["volumes"].as_array().expect("it has volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == "containerd").expect("the volume");
    assert_eq!(volume["hostPath"], json!({"path": "/run/k3s/containerd", "type": "Directory"}));
    let address = json!({"name": "CONTAINERD_ADDRESS", "value": "/node/containerd/containerd.sock"});
    assert_eq!(spec["containers"][0]["env"], json!([address]));
}

#[test]
fn chart_without_a_proxy_image_is_rejected() {
    let error = String::from_utf8_lossy(&template(&[]).stderr).into_owned();
    assert!(error.contains("proxyImage"), "{error}");
}

#[test]
fn metrics_are_served_where_monitoring_is_enabled() {
    let port = |objects: &Objects| {
        let agent = &objects["DaemonSet istio-aux-node"]["spec"]["template"]["spec"]["containers"][0];
        let args = agent["args"].as_array().expect("it has arguments").iter();
        let listen = args.filter_map(Value::as_str).find(|arg| arg.starts_with("--metrics-port"));
        (listen.map(str::to_owned), agent["ports"][0]["hostPort"].clone())
    };
    let without = chart(&[]);
    assert_eq!(port(&without), (None, Value::Null));
    assert!(!without.contains_key("PodMonitor istio-aux-node"));
    let with = chart(&["--set=monitoring.enabled=true", "--set=monitoring.labels.release=prometheus"]);
    assert_eq!(port(&with), (Some("--metrics-port=15096".to_owned()), json!(15096)));
    for kind in ["PodMonitor", "PrometheusRule"] {
        let labels = &with[&format!("{kind} istio-aux-node")]["metadata"]["labels"];
        assert_eq!(labels, &json!({"app.kubernetes.io/name": "istio-aux-node", "release": "prometheus"}));
    }
}
