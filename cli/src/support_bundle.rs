//! Gathers what a bug report needs, with the caller's own rights. Reads no Secret, and leaves out of pods what may
//! hold one: variables, commands, volumes, and annotations of others.

use anyhow::{Context, Result};
use contract::kind::{Kind, PODS};
use contract::names::{
    HOLD_FIELD, ISTIO_INJECT, PROBES_ANNOTATION, PROXY_CONFIG_ANNOTATION, SHIM_CONTAINER, STATUS_PORT_ANNOTATION,
};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams, LogParams};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::check::{self, CONFIGURATION_NAME, Finding, SHIM_CONFIGURATION_NAME, Scope, note};
use crate::installation::{self, Versions, configurations, versions};
use crate::read::{self, CLUSTER_ROLE_BINDINGS, account_of};

/// Are the `ClusterRoleBindings` of the controller for tenants, and of the node agents. The webhook's pods are those of its Service.
const BINDINGS_OF_OTHER_SERVERS: [&str; 2] = ["istio-aux-tenancy", "istio-aux-node"];
/// Are the annotations whose values are known to hold no secret. Those of istio-aux are printed, too.
const ISTIOS_ANNOTATIONS: [&str; 4] =
    [ISTIO_INJECT, STATUS_PORT_ANNOTATION, "sidecar.istio.io/status", "sidecar.istio.io/nativeSidecar"];
const EVENTS: Kind = Kind::new("", "v1", "Event", "events");
/// Limits the lines of each log, and its bytes.
const LOG_LINES: i64 = 500;
const LOG_BYTES: i64 = 1 << 20;
/// Limits the pods of a namespace.
const PODS_LIMIT: usize = 50;

/// Holds what is gathered.
#[derive(Debug, Serialize)]
pub(crate) struct Bundle {
    versions: Versions,
    findings: Vec<Finding>,
    /// The `MutatingWebhookConfigurations` of istio-aux. A CA is not secret, and long.
    configurations: Vec<Value>,
    servers: Vec<PodReport>,
    /// The pods of the namespace.
    pods: Vec<PodReport>,
    /// What Kubernetes has reported in the namespace, oldest first.
    events: Vec<String>,
    /// Says what could not be read, and why, and what is left out.
    unreadable: Vec<String>,
}

/// Holds a pod, and the log of its istio-aux container.
#[derive(Debug, Serialize)]
struct PodReport {
    #[serde(flatten)]
    pod: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

/// Gathers the installation, and a namespace if one is named. What cannot be read is said in the bundle. `Err` if the server does not
/// answer.
pub(crate) async fn gather(client: &Client, namespace: Option<&str>) -> Result<Bundle> {
    client.apiserver_version().await.context("the API server does not answer")?;
    let mut unreadable = Vec::new();
    let scope =
        Scope { namespace: namespace.map(str::to_owned), selector: String::new(), probe_in: None, settings: None };
    let findings = note(&mut unreadable, check::run(client, &scope).await).unwrap_or_default();
    let mut configurations = note(&mut unreadable, configurations(client).await).unwrap_or_default();
    configurations
        .retain(|it| [CONFIGURATION_NAME, SHIM_CONFIGURATION_NAME].iter().any(|name| it["metadata"]["name"] == *name));
    for configuration in &mut configurations {
        configuration["metadata"].as_object_mut().and_then(|metadata| metadata.shift_remove("managedFields"));
    }
    for webhook in configurations.iter_mut().filter_map(|it| it["webhooks"].as_array_mut()).flatten() {
        if let Some(ca) = webhook["clientConfig"]["caBundle"].as_str() {
            webhook["clientConfig"]["caBundle"] = format!("{} bytes", ca.len()).into();
        }
    }
    let mut servers = Vec::new();
    for binding in BINDINGS_OF_OTHER_SERVERS {
        let binding = note(&mut unreadable, read::get(client, CLUSTER_ROLE_BINDINGS, None, binding).await).flatten();
        if let Some([namespace, name]) = binding.as_ref().and_then(account_of) {
            let selector = format!("app.kubernetes.io/name={name}");
            servers.extend(reports(client, Some(&namespace), &selector, only_container, &mut unreadable).await);
        }
    }
    if let Some((namespace, selector)) =
        note(&mut unreadable, installation::pods_of(client, &configurations).await).flatten()
    {
        servers.extend(reports(client, Some(&namespace), &selector, only_container, &mut unreadable).await);
    }
    let (mut pods, mut events) = (Vec::new(), Vec::new());
    if let Some(namespace) = namespace {
        pods = reports(client, Some(namespace), "", shim_container, &mut unreadable).await;
        let listed = read::list(client, EVENTS, Some(namespace), &ListParams::default()).await;
        events = note(&mut unreadable, listed).unwrap_or_default().iter().map(event).collect();
        events.sort_unstable();
    }
    Ok(Bundle { versions: versions(client).await, findings, configurations, servers, pods, events, unreadable })
}

/// Returns the container of a server's pod: the only one.
fn only_container(pod: &Value) -> Option<&str> {
    pod["spec"]["containers"][0]["name"].as_str()
}

/// Returns the shim's container, if it has one of its own.
fn shim_container(pod: &Value) -> Option<&str> {
    let mut init = pod["spec"]["initContainers"].as_array()?.iter().filter_map(|container| container["name"].as_str());
    init.find(|name| *name == SHIM_CONTAINER)
}

/// Reads pods, and the log of the container of each that `container` names.
async fn reports(
    client: &Client,
    namespace: Option<&str>,
    selector: &str,
    container: fn(&Value) -> Option<&str>,
    unreadable: &mut Vec<String>,
) -> Vec<PodReport> {
    let listed = read::list(client, PODS, namespace, &ListParams::default().labels(selector)).await;
    let mut listed = note(unreadable, listed).unwrap_or_default();
    listed.sort_by_key(|pod| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")));
    if listed.len() > PODS_LIMIT {
        unreadable.push(format!("{} of {} pods are left out", listed.len() - PODS_LIMIT, listed.len()));
    }
    let mut reports = Vec::new();
    for pod in listed.iter().take(PODS_LIMIT) {
        let log = match container(pod) {
            Some(container) => note(unreadable, log_of(client, pod, container).await),
            None => None,
        };
        reports.push(PodReport { pod: reduced(pod), log });
    }
    reports
}

async fn log_of(client: &Client, pod: &Value, container: &str) -> Result<String> {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    let parameters = LogParams {
        container: Some(container.to_owned()),
        tail_lines: Some(LOG_LINES),
        limit_bytes: Some(LOG_BYTES),
        ..LogParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.logs(name, &parameters).await.with_context(|| format!("cannot read the log of pod {namespace}/{name}"))
}

/// Returns what decisions depend on, and the kubelet's status.
fn reduced(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    let annotations = metadata["annotations"].as_object().into_iter().flatten();
    let annotations: Map<String, Value> =
        annotations.filter_map(|(key, value)| Some((key.clone(), kept(key, value)?))).collect();
    let containers =
        |field: &str| pod["spec"][field].as_array().into_iter().flatten().map(reduced_container).collect::<Vec<_>>();
    let mut spec = fields(
        &pod["spec"],
        &[
            "restartPolicy",
            "shareProcessNamespace",
            "runtimeClassName",
            "nodeName",
            "hostNetwork",
            "hostPID",
            "securityContext",
        ],
    );
    spec.insert("initContainers".to_owned(), containers("initContainers").into());
    spec.insert("containers".to_owned(), containers("containers").into());
    let mut about = fields(metadata, &["name", "namespace", "creationTimestamp", "deletionTimestamp", "labels"]);
    about.insert("annotations".to_owned(), annotations.into());
    let mut status = pod["status"].clone();
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        let statuses = status.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        statuses.filter(|status| status["name"] != SHIM_CONTAINER).for_each(remove_messages);
    }
    json!({"metadata": about, "spec": spec, "status": status})
}

/// Returns an annotation's value as it is printed. A `ProxyConfig` may set variables, and a probe has headers.
fn kept(key: &str, value: &Value) -> Option<Value> {
    if key == PROXY_CONFIG_ANNOTATION {
        let sets = if value.as_str()?.contains(HOLD_FIELD) { "sets" } else { "does not set" };
        return Some(format!("left out; it {sets} {HOLD_FIELD}").into());
    }
    if key == PROBES_ANNOTATION {
        return Some("left out".into());
    }
    (key.starts_with("istio-aux.io/") || ISTIOS_ANNOTATIONS.contains(&key)).then(|| value.clone())
}

/// Removes messages: a termination message may be the end of the payload's log, and a runtime's error contains its command.
fn remove_messages(status: &mut Value) {
    for (state, kind) in [("state", "terminated"), ("state", "waiting"), ("lastState", "terminated")] {
        if let Some(state) = status.get_mut(state).and_then(|state| state.get_mut(kind)?.as_object_mut()) {
            state.shift_remove("message");
        }
    }
}

fn reduced_container(container: &Value) -> Value {
    let mut kept =
        fields(container, &["name", "image", "restartPolicy", "restartPolicyRules", "resources", "securityContext"]);
    if container["name"] == SHIM_CONTAINER {
        kept.extend(fields(container, &["args"]));
    }
    kept.into()
}

fn fields(object: &Value, names: &[&str]) -> Map<String, Value> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), object.get(*name)?.clone()))).collect()
}

/// Returns an event in one line that begins with its time.
fn event(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let time = [&event["lastTimestamp"], &event["eventTime"]].into_iter().find(|time| time.is_string());
    let object = &event["involvedObject"];
    let place = format!("{}/{}", text(&object["kind"]), text(&object["name"]));
    format!("{} {} {place}: {}", time.map(&text).unwrap_or_default(), text(&event["reason"]), text(&event["message"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fake::{Answer, client};

    const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

    fn version() -> Answer {
        let info = json!({"major": "1", "minor": "36", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        Answer::ok("GET /version", info)
    }

    #[tokio::test]
    async fn bundle_has_the_shims_log_and_no_value_of_a_variable() {
        let main = json!({"name": "main", "image": "app:1", "env": [{"name": "TOKEN", "value": "hidden"}],
            "command": ["run", "--password=hidden"]});
        let shim = json!({"name": "aux-shim", "args": ["watch", "--await=main"]});
        let annotations = json!({"istio-aux.io/status": "{}", "acme.example/istio-password": "hidden",
            "istio-aux.io/probes": r#"{"httpHeaders": [{"value": "hidden"}]}"#,
            "proxy.istio.io/config": "{proxyMetadata: {A: hidden}, holdApplicationUntilProxyStarts: true}"});
        let pod = json!({
            "metadata": {"name": "a", "namespace": "team", "annotations": annotations},
            "spec": {"restartPolicy": "Never", "initContainers": [shim], "containers": [main], "volumes": ["hidden"]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "main", "state": {"terminated": {"exitCode": 1, "message": "hidden"}}},
            ]},
        });
        let end = json!({"lastTimestamp": "2026-11-26T01:02:03Z", "reason": "Killing", "message": "it ends",
            "involvedObject": {"kind": "Pod", "name": "a"}});
        let (client, _) = client([
            Answer::ok("GET /api/v1/namespaces/team/pods/a/log", json!("waits for main")),
            Answer::list("GET /api/v1/namespaces/team/pods?", &[pod]),
            Answer::list("GET /api/v1/namespaces/team/events?", &[end]),
            Answer::forbidden(&format!("GET {BINDINGS}/istio-aux-tenancy"), "no rights"),
            version(),
        ]);
        let bundle = gather(&client, Some("team")).await.unwrap();
        let text = serde_saphyr::to_string(&bundle).unwrap();
        for part in [
            "waits for main",
            "--await=main",
            "app:1",
            "2026-11-26T01:02:03Z Killing Pod/a: it ends",
            "exitCode: 1",
            "it sets holdApplicationUntilProxyStarts",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("hidden"), "{text}");
        let unreadable = "cannot read clusterrolebindings: no rights";
        assert!(bundle.unreadable.iter().any(|line| line == unreadable), "{:?}", bundle.unreadable);
    }

    #[tokio::test]
    async fn servers_are_pods_in_the_namespace_of_their_account() {
        let binding = json!({"subjects": [{"name": "istio-aux-node", "namespace": "aux"}]});
        let pod = |namespace: &str, name: &str| {
            let metadata = json!({"namespace": namespace, "name": name});
            json!({"metadata": metadata, "spec": {"containers": [{"name": "agent"}]}})
        };
        let (client, requests) = client([
            Answer::ok(&format!("GET {BINDINGS}/istio-aux-node"), binding),
            Answer::list("GET /api/v1/pods?", &[pod("team", "forged")]),
            Answer::list("GET /api/v1/namespaces/aux/pods?", &[pod("aux", "agent-1")]),
            Answer::ok("GET /api/v1/namespaces/aux/pods/agent-1/log", json!("it listens")),
            version(),
        ]);
        let bundle = gather(&client, None).await.unwrap();
        let names: Vec<_> = bundle.servers.iter().map(|server| &server.pod["metadata"]["name"]).collect();
        assert_eq!(names, ["agent-1"]);
        let log = requests.all().into_iter().find(|line| line.contains("/log?")).unwrap();
        assert!(log.contains("limitBytes=1048576") && log.contains("tailLines=500"), "{log}");
    }

    #[tokio::test]
    async fn ca_of_a_configuration_is_counted_only() {
        let webhook = json!({"clientConfig": {"caBundle": "QUJD"}});
        let ours = json!({"metadata": {"name": "istio-aux"}, "webhooks": [webhook]});
        let other = json!({"metadata": {"name": "other"}});
        let path = "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
        let (client, _) = client([Answer::list(path, &[ours, other]), version()]);
        let bundle = gather(&client, None).await.unwrap();
        assert_eq!(bundle.configurations.len(), 1);
        assert_eq!(bundle.configurations[0]["webhooks"][0]["clientConfig"]["caBundle"], "4 bytes");
        assert!(bundle.pods.is_empty() && bundle.events.is_empty());
    }
}
