//! The objects that scenarios create: small pods of busybox and curl, Jobs of them, a server in the mesh.

use contract::names::{ISTIO_STATUS_ANNOTATION, MODE_ANNOTATION, PROXY_CONTAINER};
use serde_json::{Value, json};

/// Returns the image of payloads: busybox' shell and tools, curl, user 65532. `PAYLOAD_IMAGE` replaces it.
pub fn payload_image() -> String {
    std::env::var("PAYLOAD_IMAGE").unwrap_or_else(|_| "docker.io/istio-aux-cluster/payload:1".to_owned())
}

/// A shell command that exits with 99 unless the proxy is ready. Containers end with it, because on a busy node the runtime's end
/// times do not show the order of the ends.
pub const NEEDS_PROXY: &str = "curl -sSf --max-time 5 -o /dev/null http://localhost:15021/healthz/ready || exit 99";

/// Returns a container that runs a shell script.
pub fn shell(name: &str, script: &str) -> Value {
    container(name, &["sh", "-c", script])
}

/// Names the image of Python with gRPC and `WebSockets`: that of `hack/cluster/cluster add python`, or another.
pub const PYTHON_IMAGE: &str = "PYTHON_IMAGE";

/// Returns a container that runs a command in that image.
///
/// # Panics
/// If no image is named.
#[must_use]
pub fn python(name: &str, command: &[&str]) -> Value {
    let mut container = container(name, command);
    container["image"] = json!(std::env::var(PYTHON_IMAGE).expect("the image of Python is named by PYTHON_IMAGE"));
    container
}

/// Returns a container that runs a command.
pub fn container(name: &str, command: &[&str]) -> Value {
    json!({
        "name": name, "image": payload_image(), "command": command,
        "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}},
    })
}

/// Returns a native sidecar, for the init containers of a pod: it runs until SIGTERM, logs that it got one, and exits at once.
pub fn native_sidecar(name: &str) -> Value {
    let mut sidecar = shell(name, "trap 'echo got SIGTERM; kill $!; exit 0' TERM; sleep 86400 & wait $!");
    sidecar["restartPolicy"] = json!("Always");
    sidecar
}

/// Adds a `postStart` hook. The kubelet starts no other container until the hook has ended.
pub fn with_post_start(mut container: Value, script: &str) -> Value {
    container["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", script]}}});
    container
}

/// Returns the specification of a pod.
pub fn pod_spec(restart_policy: &str, containers: &[Value]) -> Value {
    json!({"restartPolicy": restart_policy, "terminationGracePeriodSeconds": 1, "containers": containers})
}

/// Adds init containers to a pod's specification.
pub fn with_init(mut spec: Value, init_containers: &[Value]) -> Value {
    spec["initContainers"] = json!(init_containers);
    spec
}

/// Sets Kubernetes' default grace period, for containers that end at SIGTERM by themselves.
pub fn with_default_grace(mut spec: Value) -> Value {
    spec["terminationGracePeriodSeconds"] = json!(30);
    spec
}

/// Adds a directory `/memory` to each container, which outlives their restarts.
pub fn with_memory(mut spec: Value) -> Value {
    spec["volumes"] = json!([{"name": "memory", "emptyDir": {}}]);
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        container["volumeMounts"] = json!([{"name": "memory", "mountPath": "/memory"}]);
    }
    spec
}

/// Adds a container's restart rule for one exit code (KEP-5307). The container's own policy is `Never` unless it has one.
#[must_use]
pub fn with_rule(mut container: Value, action: &str, code: u8) -> Value {
    container["restartPolicy"].as_str().is_none().then(|| container["restartPolicy"] = json!("Never"));
    container["restartPolicyRules"] = json!([{"action": action, "exitCodes": {"operator": "In", "values": [code]}}]);
    container
}

/// Removes a pod's account token, which the API server mounts under a random name.
pub fn without_token(mut pod: Value) -> Value {
    let is_token = |item: &Value| item["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access"));
    let spec = &mut pod["spec"];
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.retain(|volume| !is_token(volume));
    }
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                mounts.retain(|mount| !is_token(mount));
            }
        }
    }
    pod
}

/// Returns a pod.
pub fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Returns a pod in each of these modes, with its mode as its name.
pub fn in_modes(modes: &[&str], spec: &Value) -> Vec<Value> {
    modes.iter().map(|mode| annotated(pod(mode, spec), MODE_ANNOTATION, mode)).collect()
}

/// Gives a pod and its containers what Pod Security `restricted` asks for.
pub fn restricted(mut pod: Value) -> Value {
    pod["spec"]["securityContext"] = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            container["securityContext"] =
                json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        }
    }
    pod
}

/// Annotates an object, on itself where it is a pod, else on its pod template.
pub fn annotated(mut object: Value, key: &str, value: &str) -> Value {
    let pod = if object["kind"] == "Pod" { &mut object } else { &mut object["spec"]["template"] };
    pod["metadata"]["annotations"][key] = json!(value);
    object
}

/// Sets all annotations of a Deployment's pods.
#[must_use]
pub fn with_annotations(mut deployment: Value, annotations: &Value) -> Value {
    deployment["spec"]["template"]["metadata"]["annotations"] = annotations.clone();
    deployment
}

/// Marks a pod whose container `istio-proxy` stands in for one that Istio's injector has rendered.
pub fn injected(pod: Value) -> Value {
    annotated(pod, ISTIO_STATUS_ANNOTATION, &json!({"containers": [PROXY_CONTAINER]}).to_string())
}

/// Returns a Job of one pod.
pub fn job(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {"spec": spec}},
    })
}

/// Returns a web server in the mesh that takes mutual TLS only, so every request came through a proxy. Its Service is `web`, its
/// page says [`GREETING`].
pub fn server() -> Vec<Value> {
    let [service, deployment] = web("web");
    vec![strict(), service, deployment]
}

/// Returns a web server's Service and Deployment, both by this name. Its page says [`GREETING`].
pub fn web(name: &str) -> [Value; 2] {
    let mut serve = container("web", &["httpd", "-f", "-p", "8080", "-h", "/www"]);
    serve["readinessProbe"] = json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1});
    [service(name, 80, 8080), deployment(name, &pod_spec("Always", &[serve]))]
}

/// Returns a service account.
pub fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
}

/// Returns a server at `/`, and of a program's output at `/cgi-bin/stream`, in a mesh in which each request is a connection of its
/// own from proxy to proxy, too, and is not tried again.
pub fn streaming_server(program: &str) -> Vec<Value> {
    let mut serve = container("main", &["httpd", "-f", "-p", "8080", "-h", "/www"]);
    // A refused probe fails at once; a slow one says nothing of the proxy.
    let port = json!({"path": "/", "port": 8080});
    serve["readinessProbe"] = json!({"httpGet": port, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30});
    serve["livenessProbe"] = serve["readinessProbe"].clone();
    let mut spec = with_memory(pod_spec("Always", &[serve]));
    let volume = json!({"name": "program", "configMap": {"name": "program", "defaultMode": 0o755}});
    spec["volumes"].as_array_mut().expect("it is a list").push(volume);
    let mounts = spec["containers"][0]["volumeMounts"].as_array_mut().expect("it is a list");
    mounts.push(json!({"name": "program", "mountPath": "/www/cgi-bin"}));
    let mut objects = vec![
        strict(),
        service("web", 80, 8080),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program"}, "data": {"stream": program}}),
        deployment("web", &spec),
    ];
    objects.extend(each_by_its_connection("web"));
    objects
}

/// Has each request to a Service be a connection of its own from proxy to proxy, too, and not be tried again.
pub fn each_by_its_connection(service: &str) -> [Value; 2] {
    let route = json!({"route": [{"destination": {"host": service}}], "retries": {"attempts": 0}});
    [
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "DestinationRule", "metadata": {"name": service},
            "spec": {"host": service, "trafficPolicy": {"connectionPool": {"http": {"maxRequestsPerConnection": 1}}}},
        }),
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "VirtualService", "metadata": {"name": service},
            "spec": {"hosts": [service], "http": [route]},
        }),
    ]
}

/// Returns a Service of HTTP for the pods of a Deployment, by its name.
pub fn service(deployment: &str, port: u16, target_port: u16) -> Value {
    let ports = json!([{"name": "http", "port": port, "targetPort": target_port}]);
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": deployment},
        "spec": {"selector": {"app": deployment}, "ports": ports},
    })
}

/// Returns a policy by which the pods of a namespace take mutual TLS only.
pub fn strict() -> Value {
    json!({
        "apiVersion": "security.istio.io/v1beta1", "kind": "PeerAuthentication", "metadata": {"name": "strict"},
        "spec": {"mtls": {"mode": "STRICT"}},
    })
}

/// The page of [`server`].
pub const GREETING: &str = "hello from the mesh";

/// Returns a Gateway of the Kubernetes Gateway API that listens for HTTP.
pub fn gateway(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": name},
        "spec": {"gatewayClassName": class, "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    })
}

/// Returns a Deployment of one pod, labelled `app`.
pub fn deployment(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    })
}

/// Returns a `TFJob` of workers.
pub fn tf_job(name: &str, workers: u32, restart_policy: &str, script: &str) -> Value {
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("tensorflow", script)]});
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name},
        "spec": {"tfReplicaSpecs": {"Worker": {
            "replicas": workers, "restartPolicy": restart_policy, "template": {"spec": spec},
        }}},
    })
}

/// Returns the definition of a kind of namespaced objects that takes any: their own controller is not in the cluster.
pub fn kind_of_any_object(group: &str, version: &str, kind: &str) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": version, "served": true, "storage": true, "schema": schema});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": [version],
            "names": {"kind": kind, "plural": plural, "singular": singular},
        },
    })
}
