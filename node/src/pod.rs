//! Reads the pod from the API. The identity is the service account, whatever annotations say.

mod document;

use std::time::Duration;

use api::limit_answers;
use cni::protocol::Sandbox;
use contract::names::NODE_RUNTIME_CLASS;
use contract::quantity;
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::GetParams;
use kube::{Client, Config, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::document::{Contained, Document, HostAlias, Owner, Port, Status};
use crate::error::{Context, Error, Result};

/// Limits a pod, in bytes of JSON.
const POD_LIMIT: u64 = 1 << 20;
/// Limits an answer that is not kept. The API server's answer may be six times an object's size in etcd, 1.5 MiB.
const ANSWER_LIMIT: u64 = 16 << 20;
/// Limits a pod's labels, in bytes: unlike annotations, the API server does not. They are written to a file in memory.
const LABELS_LIMIT: usize = 64 << 10;
/// Limits the number of a pod's labels, containers, ports and `hostAliases`: each takes up to 2 KiB besides its text, in each copy.
const COUNT_LIMIT: usize = 1_000;
/// Limits each word of an owner: names of objects have 253 characters at most.
const OWNER_WORD_LIMIT: usize = 253;

/// Holds what a proxy needs of its pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodFacts {
    /// The pod's service account.
    pub service_account: String,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos_class: String,
    /// The bytes of memory of the pod's overhead, which are the proxy's.
    pub memory: Option<u64>,
    /// The CPU shares of the pod's overhead, as the kubelet gives containers those of their requests.
    pub cpu_shares: u64,
    /// The pod's `hostAliases`, as lines of a hosts file.
    pub hosts: String,
    /// The pod for istiod's injector: what its template has of a pod, and that the API server validates. Of the annotations only those
    /// that become part of the proxy.
    pub object: Box<Pod>,
}

impl PodFacts {
    /// Returns an annotation's value.
    pub(crate) fn annotation(&self, name: &str) -> Option<&String> {
        self.object.metadata.annotations.as_ref()?.get(name)
    }

    /// Returns a pod with an annotation.
    #[cfg(test)]
    pub(crate) fn annotated(name: &str, value: &str) -> Self {
        let annotations = Some([(name.to_owned(), value.to_owned())].into());
        let metadata = ObjectMeta { annotations, ..ObjectMeta::default() };
        Self { object: Box::new(Pod { metadata, ..Pod::default() }), ..Self::default() }
    }
}

/// Returns a client of the API server or istiod that treats a late answer as a dead connection. Not for watches.
pub fn client(mut api: Config, timeout: Duration) -> kube::Result<Client> {
    api.connect_timeout = Some(timeout);
    limit_answers(&mut api, timeout);
    // kube would ask up to 15 times more while the API server is overloaded, for minutes. The callers ask again by themselves.
    api.default_retry = false;
    Client::try_from(api)
}

/// Reads the facts of a sandbox' pod, and checks its UID and its runtime class.
pub async fn read_pod(client: &Client, sandbox: &Sandbox) -> Result<PodFacts> {
    let pod: Option<Document> = get_pod(client, sandbox, POD_LIMIT).await?;
    let pod = pod.context("the pod does not exist any more")?;
    if pod.metadata.uid.as_deref() != Some(&sandbox.uid) {
        // The API server's copy of a static pod has a UID of its own.
        return Err(Error::new("another pod has its name now, or it is a static pod, which gets no proxy"));
    }
    facts(pod)
}

/// Returns true if the pod does not exist any more, or has ended: the kubelet has reported its phase as `Succeeded` or `Failed`.
pub async fn is_pod_over(client: &Client, sandbox: &Sandbox) -> Result<bool> {
    let pod: Option<Found> = get_pod(client, sandbox, ANSWER_LIMIT).await?;
    let pod = pod.filter(|pod| pod.metadata.uid.as_deref() == Some(&sandbox.uid));
    let phase = pod.map(|pod| pod.status.phase.unwrap_or_default());
    Ok(phase.is_none_or(|phase| ["Succeeded", "Failed"].contains(&phase.as_str())))
}

/// Is what identifies a pod, and its phase.
#[derive(Deserialize)]
struct Found {
    metadata: Identity,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Identity {
    uid: Option<String>,
}

/// Gets the pod of a sandbox' name; `None` where there is none. Fails beyond a limit, in bytes of JSON.
async fn get_pod<T: DeserializeOwned>(client: &Client, sandbox: &Sandbox, limit: u64) -> Result<Option<T>> {
    let pods = kube::core::Request::new(Pod::url_path(&(), Some(&sandbox.namespace)));
    let body = match client.request_stream(pods.get(&sandbox.name, &GetParams::default())?).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        body => body.context("the pod cannot be read")?,
    };
    let mut text = Vec::new();
    body.take(limit + 1).read_to_end(&mut text).await.context("the pod cannot be read")?;
    if text.len() as u64 > limit {
        return Err(Error::new(format_args!("the pod is larger than {} MiB, in JSON", limit >> 20)));
    }
    Ok(Some(serde_json::from_slice(&text).context("the pod")?))
}

fn facts(pod: Document) -> Result<PodFacts> {
    let Document { metadata, spec, status } = pod;
    if spec.runtime_class_name.as_deref() != Some(NODE_RUNTIME_CLASS) {
        return Err(Error::new(format_args!("the pod's runtime class is not {NODE_RUNTIME_CLASS}")));
    }
    if metadata.labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > LABELS_LIMIT {
        return Err(Error::new("the pod's labels are larger than 64 KiB"));
    }
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let ports = containers().flat_map(|container| &container.ports).flatten().count();
    let aliases = spec.host_aliases.unwrap_or_default();
    let names = aliases.iter().map(|alias| 1 + alias.hostnames.len()).sum();
    let counts =
        [(containers().count(), "containers"), (ports, "ports"), (names, "addresses and names in hostAliases")];
    for (count, what) in counts {
        if count > COUNT_LIMIT {
            return Err(Error::new(format_args!("the pod has more than {COUNT_LIMIT} {what}")));
        }
    }
    // The API server has validated both.
    let line = |HostAlias { ip, hostnames }: &HostAlias| format!("{ip}\t{}\n", hostnames.join("\t"));
    let hosts = aliases.iter().fold(String::new(), |text, alias| text + &line(alias));
    let service_account = spec.service_account_name.unwrap_or_else(|| "default".to_owned());
    let object = Pod {
        metadata: ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            generate_name: metadata.generate_name,
            labels: Some(metadata.labels),
            annotations: Some(metadata.annotations),
            owner_references: metadata
                .owner_references
                .map(|owners| owners.into_iter().filter_map(controller).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: spec.containers.into_iter().map(container).collect(),
            init_containers: spec.init_containers.map(|containers| containers.into_iter().map(container).collect()),
            node_name: spec.node_name,
            service_account_name: Some(service_account.clone()),
            ..PodSpec::default()
        }),
        ..Pod::default()
    };
    let overhead = |resource: &str| spec.overhead.as_ref().and_then(|overhead| overhead.get(resource));
    Ok(PodFacts {
        service_account,
        qos_class: status.qos_class.unwrap_or_default(),
        memory: overhead("memory").and_then(|memory| quantity::rounded_up(&memory.0)?.try_into().ok()),
        hosts,
        cpu_shares: overhead("cpu").and_then(|cpu| quantity::thousandths(&cpu.0)).map(shares).unwrap_or_default(),
        object: Box::new(object),
    })
}

/// Returns the kubelet's shares for so many thousandths of a CPU (`MilliCPUToShares`).
fn shares(milli_cpu: i128) -> u64 {
    u64::try_from(milli_cpu * 1024 / 1000).unwrap_or(u64::MAX).clamp(2, 262_144)
}

/// Returns the controller, by which istiod names the workload; `None` for other owners, and if a field is not a plain name, since the
/// API server does not validate them.
fn controller(owner: Owner) -> Option<OwnerReference> {
    let Owner { api_version, kind, name, uid, controller } = owner;
    let is_word = |text: &String| {
        text.len() <= OWNER_WORD_LIMIT && text.chars().all(|c| c.is_ascii_alphanumeric() || "-./_".contains(c))
    };
    (controller == Some(true) && [&api_version, &kind, &name, &uid].into_iter().all(is_word)).then(|| OwnerReference {
        api_version,
        kind,
        name,
        uid,
        controller,
        ..OwnerReference::default()
    })
}

/// Returns a container's name and ports.
fn container(container: Contained) -> Container {
    let port = |Port { name, number, protocol }| ContainerPort {
        name,
        container_port: number,
        protocol,
        ..ContainerPort::default()
    };
    let ports = container.ports.map(|ports| ports.into_iter().map(port).collect());
    Container { name: container.name, ports, ..Container::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test]
    async fn idle_time_of_a_connection_does_not_shorten_its_next_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = async {
            let mut connection = BufReader::new(listener.accept().await.unwrap().0);
            for delay in [0, 2_400].map(Duration::from_millis) {
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    connection.read_line(&mut line).await.unwrap();
                }
                sleep(delay).await;
                let body = r#"{"metadata": {"uid": "other"}}"#;
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
            // One connection serves both requests.
            std::future::pending::<()>().await;
        };
        let requests = async {
            let api = Config::new(format!("http://{address}").parse().unwrap());
            let client = client(api, Duration::from_secs(4)).unwrap();
            let sandbox = Sandbox { namespace: "team".to_owned(), name: "train-0".to_owned(), ..Sandbox::default() };
            assert_eq!(is_pod_over(&client, &sandbox).await, Ok(true));
            sleep(Duration::from_millis(2_400)).await;
            assert_eq!(is_pod_over(&client, &sandbox).await, Ok(true));
        };
        tokio::select! {
            () = answers => {}
            () = requests => {}
        }
    }

    fn facts_of(pod: &Value) -> Result<PodFacts> {
        facts(serde_json::from_value(pod.clone()).unwrap())
    }

    fn pod() -> Value {
        json!({
            "metadata": {"name": "train-0", "namespace": "team", "uid": "1", "labels": {"app": "train"}},
            "spec": {
                "runtimeClassName": "istio-aux", "nodeName": "node1", "overhead": {"memory": "128Mi", "cpu": "10m"},
                "containers": [{"name": "main", "ports": [{"containerPort": 80, "hostIP": "\u{85}x", "protocol": "TCP"}]}],
            },
            "status": {"qosClass": "BestEffort"},
        })
    }

    #[test]
    fn istiod_is_told_what_the_api_server_has_validated() {
        let mut pod = pod();
        let owner = |kind: &str, name: &str, controller: bool| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "2", "controller": controller});
        pod["metadata"]["ownerReferences"] = json!([
            owner("Job", "train", true),
            owner("Job", "other", false),
            owner("Role", "a\"\n    - name: X", true),
            owner("Job", &"a".repeat(254), true)
        ]);
        pod["spec"]["hostAliases"] = json!([{"ip": "10.0.0.1", "hostnames": ["a.example", "b"]}, {"ip": "::"}]);
        pod["spec"]["initContainers"] = json!([{"name": "prepare", "args": ["x"]}]);
        let facts = facts_of(&pod).unwrap();
        assert_eq!((facts.memory, facts.cpu_shares), (Some(128 << 20), 10));
        assert_eq!(
            (facts.service_account.as_str(), facts.hosts.as_str()),
            ("default", "10.0.0.1\ta.example\tb\n::\t\n")
        );
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "train-0", "namespace": "team", "uid": "1", "labels": {"app": "train"}, "annotations": {},
                "ownerReferences": [owner("Job", "train", true)],
            },
            "spec": {
                "containers": [{"name": "main", "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
                "initContainers": [{"name": "prepare"}], "nodeName": "node1", "serviceAccountName": "default",
            },
        });
        assert_eq!(json!(facts.object), expected);
    }

    #[test]
    fn pod_of_another_class_or_with_huge_labels_is_an_error() {
        let mut other = pod();
        other["spec"]["runtimeClassName"] = json!("runc");
        let mut labelled = pod();
        labelled["metadata"]["labels"] = (0..1_000).map(|number| (format!("{number:065}"), json!(""))).collect();
        assert!(facts_of(&labelled).is_ok());
        labelled["metadata"]["labels"] = (0..1_000).map(|number| (format!("{number:066}"), json!(""))).collect();
        for (pod, text) in [(other, "the pod's runtime class is not"), (labelled, "labels are larger than 64 KiB")] {
            let error = facts_of(&pod).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn annotations_that_no_proxy_reads_take_no_memory() {
        let mut annotated = pod();
        annotated["metadata"]["annotations"] = (0..50_000).map(|number| (number.to_string(), json!(""))).collect();
        annotated["metadata"]["annotations"]["proxy.istio.io/config"] = json!("concurrency: 1");
        annotated["metadata"]["annotations"]["istio-aux.io/probes"] = json!("{}");
        let facts = facts_of(&annotated).unwrap();
        assert_eq!(facts.annotation("istio-aux.io/probes"), Some(&"{}".to_owned()));
        assert_eq!(facts.object.metadata.annotations.unwrap().len(), 2);
    }

    #[test]
    fn number_of_labels_containers_and_ports_is_limited() {
        let with = |count: usize| {
            let ports: Vec<_> = (0..count).map(|port| json!({"containerPort": port})).collect();
            let (mut labelled, mut many, mut open, mut aliased) = (pod(), pod(), pod(), pod());
            labelled["metadata"]["labels"] = (0..count).map(|number| (number.to_string(), json!(""))).collect();
            many["spec"]["containers"] = vec![json!({"name": "main"}); count].into();
            open["spec"]["containers"][0]["ports"] = json!(ports);
            aliased["spec"]["hostAliases"] = vec![json!({"ip": "::"}); count].into();
            [labelled, many, open, aliased].map(|pod| {
                let pod = serde_json::from_value(pod).map_err(|error| error.to_string());
                pod.and_then(|pod| facts(pod).map_err(|error| error.to_string())).err()
            })
        };
        assert_eq!(with(1_000), [const { None }; 4]);
        let expected = [
            "invalid length 1001, expected at most 1000 labels",
            "the pod has more than 1000 containers",
            "the pod has more than 1000 ports",
            "the pod has more than 1000 addresses and names in hostAliases",
        ];
        assert_eq!(with(1_001), expected.map(|text| Some(text.to_owned())));
    }
}
