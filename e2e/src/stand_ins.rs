//! Pods beside whose containers a stand-in for a component of Kubeflow runs. The programs, and the facts that they follow, are in
//! `stand-ins`.

use contract::names::{
    ARGO_KILL_PROXY_ANNOTATION, ARGO_WORKFLOW_LABEL, ISTIO_INJECT, KATIB_COLLECTOR_OPTION, KATIB_COMPLETED_MARKER,
    KATIB_TRIAL_LABEL,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::kubectl::wait_for_rollout;
use crate::manifests::{container, deployment, pod, pod_spec, restricted, server, service, shell, with_init};
use crate::{Namespace, PodView};

/// The name of the container that trains.
pub const TRAINING: &str = "training";
/// The name of Katib's container.
pub const COLLECTOR: &str = "metrics-logger-and-collector";
/// The name of the container of Argo's executor.
pub const EXECUTOR: &str = "wait";
/// Prints a metric once the collector has found the training's process: Katib's fails where the training has ended before.
pub const FOUND_TRAINING: &str = "until [ -e /var/log/katib/found ]; do sleep 0.2; done; echo score=0.5";
/// Prints a metric and ends.
pub const INSTANT_TRAINING: &str = "echo score=0.5";

/// Returns the `ConfigMap` of the programs.
pub fn programs() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stand-ins"},
        "data": {
            "katib-collector.sh": include_str!("../stand-ins/katib-collector.sh"),
            "argo-executor.sh": include_str!("../stand-ins/argo-executor.sh"),
            "store": "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'\nsha256sum\n",
        },
    })
}

/// Mounts the programs, and a directory that all containers share.
fn with_programs(mut spec: Value, shared: &str) -> Value {
    spec["volumes"] = json!([
        {"name": "stand-ins", "configMap": {"name": "stand-ins", "defaultMode": 0o755}},
        {"name": "shared", "emptyDir": {}},
    ]);
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        container["volumeMounts"] =
            json!([{"name": "stand-ins", "mountPath": "/stand-ins"}, {"name": "shared", "mountPath": shared}]);
    }
    spec
}

/// Returns a trial's pod as Katib's webhook changes it. The training prints its metric, and the collector reports it to the server `web`.
pub fn trial(name: &str, restart_policy: &str, training: &str) -> Value {
    trial_reporting_to("web", name, restart_policy, training)
}

/// Returns a trial's pod whose collector reports to this server.
pub fn trial_reporting_to(server: &str, name: &str, restart_policy: &str, training: &str) -> Value {
    let log = "/var/log/katib";
    // Kubernetes makes $$ of $$$$, and the shell its PID of that.
    let script = format!("({training}) 1>{log}/metrics.log 2>&1 && {KATIB_COMPLETED_MARKER}{log}/$$$$.pid");
    let mut training = shell(TRAINING, "");
    training["command"] = json!(["sh", "-c"]);
    training["args"] = json!([script]);
    let mut collector = container(COLLECTOR, &["sh", "/stand-ins/katib-collector.sh"]);
    collector["args"] =
        json!(["-t", name, "-m", "score", KATIB_COLLECTOR_OPTION, server, "-path", format!("{log}/metrics.log")]);
    let mut spec = with_programs(pod_spec(restart_policy, &[training, collector]), log);
    spec["shareProcessNamespace"] = json!(true);
    let mut pod = pod(name, &spec);
    pod["metadata"]["labels"] = json!({KATIB_TRIAL_LABEL: name});
    pod
}

/// Returns the pod of a step as Argo's controller makes it. It writes 1 MB, which its executor uploads to the server `store` in ten
/// seconds.
pub fn step(name: &str) -> Value {
    let write = "sleep 2; head -c 1000000 /dev/urandom > /tmp/data";
    let mut wait = container(EXECUTOR, &["sh", "/stand-ins/argo-executor.sh", "wait", "store"]);
    // Argo's executor may signal the processes that it sees.
    wait["securityContext"] = json!({"runAsUser": 0});
    let main = container("main", &["sh", "/stand-ins/argo-executor.sh", "emissary", write]);
    let mut pod = pod(name, &with_programs(pod_spec("Never", &[wait, main]), "/var/run/argo"));
    pod["metadata"]["labels"] = json!({ARGO_WORKFLOW_LABEL: name});
    // A proxy that is told to end does so while the upload is under way.
    pod["metadata"]["annotations"] = json!({"proxy.istio.io/config": "terminationDrainDuration: 1s"});
    pod
}

/// Returns a pod of a pipeline's run, as the compiler of Kubeflow Pipelines and Argo's controller write it, under Pod Security
/// `restricted`. Its program asks the API server and writes outputs, and Argo's executor uploads them to the store; both are in this
/// namespace. The annotation is in every template of a workflow (pipelines#6067, pipelines#14468).
pub fn pipelines_pod(name: &str, kubeflow: &str) -> Value {
    let script = format!("{} && head -c 1000 /dev/urandom >/tmp/data", asks_api_server(kubeflow));
    let store = format!("store.{kubeflow}");
    let wait = container(EXECUTOR, &["sh", "/stand-ins/argo-executor.sh", "wait", &store]);
    let main = container("main", &["sh", "/stand-ins/argo-executor.sh", "emissary", &script]);
    let spec = pod_spec("Never", &[wait, main]);
    let mut pod = pod(name, &with_programs(with_init(spec, &[shell("init", "true")]), "/var/run/argo"));
    pod["metadata"]["labels"] = json!({ARGO_WORKFLOW_LABEL: name});
    pod["metadata"]["annotations"] = json!({ISTIO_INJECT: "false"});
    restricted(pod)
}

/// Returns the command by which a container of such a pod asks the API server, which takes mutual TLS only.
pub fn asks_api_server(kubeflow: &str) -> String {
    format!("curl -sSf --max-time 30 -o /dev/null http://web.{kubeflow}/")
}

/// Returns a server that answers an upload with its checksum, for `step`.
pub fn store() -> [Value; 2] {
    let mut serve = container("store", &["httpd", "-f", "-p", "8080", "-h", "/srv"]);
    serve["volumeMounts"] = json!([{"name": "program", "mountPath": "/srv/cgi-bin"}]);
    serve["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    let mut spec = pod_spec("Always", &[serve]);
    spec["volumes"] = json!([{"name": "program", "configMap": {"name": "stand-ins", "defaultMode": 0o755}}]);
    [service("store", 80, 8080), deployment("store", &spec)]
}

/// Starts the server `web`, which takes mutual TLS only, and the store, and waits until they serve.
pub async fn start_servers(ns: &Namespace) {
    ns.create_object(programs()).await;
    ns.create_objects(server().into_iter().chain(store())).await;
    for name in ["web", "store"] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
    }
}

/// Ends a step's containers as Argo's controller 4.1 does (`SignalContainer` in `workflow/signal`): when main has ended, it runs in each
/// container that has not the command of its annotation `workflows.argoproj.io/kill-cmd-NAME`, or `kill -15 1`, and goes on where
/// that fails.
pub async fn signal_as_argos_controller(ns: &Namespace, name: &str) {
    ns.pod_until(name, "main's end", |pod| PodView(pod).exit_code("main")).await;
    let pod = ns.pod(name).await;
    let view = PodView(&pod);
    for container in containers(&pod).filter(|container| view.terminated(container).is_none()) {
        let annotation = ARGO_KILL_PROXY_ANNOTATION.replace("istio-proxy", container);
        let command = view.annotation(&annotation).unwrap_or(r#"["/bin/sh", "-c", "kill -%d 1"]"#).replace("%d", "15");
        let command: Vec<&str> = serde_json::from_str(&command).expect("the annotation is a command");
        let output = ns.try_exec(name, container, &command);
        println!("signaled {name} {container}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| container.name.as_str())
}
