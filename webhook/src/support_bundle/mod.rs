//! Collects what a maintainer asks for into a directory: findings, versions, configuration, statuses and logs. It reads no
//! Secrets, and the number of pods and the length of logs are limited.

mod redaction;

use std::fs;
use std::path::{Path, PathBuf};

use contract::names::{PROXY_CONTAINER, SHIM_CONTAINER, SHIM_LABEL};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, LogParams};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::{self, DEPLOYMENTS, Kind, PODS, SERVICES, Selection, WEBHOOK_CONFIGURATIONS, describe_error};
use crate::check::{self, Scope};
use crate::installation::versions;

const EVENTS: Kind = Kind("", "v1", "Event", "events");
const ENDPOINT_SLICES: Kind = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
/// How many pods with the shim are collected at most.
const PODS_LIMIT: usize = 50;
/// How long a log may be, in bytes.
const LOG_LIMIT: i64 = 1 << 20;

/// What to collect.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The directory to make.
    pub(crate) directory: PathBuf,
    /// The namespace of the webhook.
    pub(crate) webhook_namespace: String,
    /// How many of a log's last lines.
    pub(crate) tail: i64,
    /// Which pods with the shim, and the scope of the check.
    pub(crate) scope: Scope,
}

/// What was collected.
#[derive(Serialize)]
pub(crate) struct Bundle {
    #[serde(skip)]
    client: Client,
    #[serde(skip)]
    tail: i64,
    pub(crate) directory: PathBuf,
    pub(crate) files: Vec<PathBuf>,
    /// What could not be collected, and why.
    pub(crate) unreadable: Vec<String>,
}

/// Collects a bundle. `Err` where the directory cannot be made or written.
pub(crate) async fn collect(client: &Client, request: Request) -> Result<Bundle, String> {
    let Request { directory, webhook_namespace, tail, scope } = request;
    fs::create_dir(&directory).map_err(|error| format!("{} cannot be made: {error}", directory.display()))?;
    let mut bundle = Bundle { client: client.clone(), tail, directory, files: Vec::new(), unreadable: Vec::new() };
    bundle.write_json("versions.json", &versions(client).await)?;
    match check::run(client, &scope).await {
        Ok(findings) => bundle.write_json("check.json", &json!({"findings": findings}))?,
        Err(reason) => bundle.unreadable.push(reason),
    }
    bundle.installation(&webhook_namespace).await?;
    bundle.workloads(&scope).await?;
    let unreadable = bundle.unreadable.clone();
    bundle.write_json("unreadable.json", &unreadable)?;
    Ok(bundle)
}

impl Bundle {
    /// The objects and logs of the webhook.
    async fn installation(&mut self, namespace: &str) -> Result<(), String> {
        let inside = Selection::in_namespace(Some(namespace));
        let kinds = [
            (WEBHOOK_CONFIGURATIONS, Selection::default()),
            (DEPLOYMENTS, inside),
            (SERVICES, inside),
            (ENDPOINT_SLICES, inside),
            (EVENTS, inside),
            (PODS, inside),
        ];
        for (kind, selection) in kinds {
            let Some(objects) = self.note(api::list(&self.client, kind, selection).await) else { continue };
            if kind == PODS {
                for pod in objects.iter().take(PODS_LIMIT) {
                    self.logs("webhook", pod, None).await?;
                }
            }
            let objects: Vec<Value> = objects.into_iter().map(redaction::own_object).collect();
            self.write_json(&format!("webhook/{}.json", kind.3), &objects)?;
        }
        Ok(())
    }

    /// The pods with the shim, and the logs of the container in which it runs.
    async fn workloads(&mut self, scope: &Scope) -> Result<(), String> {
        let labels = if scope.selector.is_empty() { SHIM_LABEL.to_owned() } else { scope.selector.clone() };
        let selection = Selection::in_namespace(scope.namespace.as_deref()).labels(&labels);
        let mut pods = Vec::new();
        let read = api::for_each(&self.client, PODS, selection, |pod| {
            if pods.len() < PODS_LIMIT {
                pods.push(pod);
            }
        });
        let read = read.await;
        self.note(read);
        for pod in pods {
            let [namespace, name] = ["namespace", "name"].map(|field| pod["metadata"][field].as_str().unwrap_or("?"));
            self.write_json(&format!("pods/{namespace}/{name}.json"), &redaction::workload_pod(&pod))?;
            let is_native = pod["metadata"]["labels"][SHIM_LABEL] == "native";
            let container = if is_native { SHIM_CONTAINER } else { PROXY_CONTAINER };
            self.logs("pods", &pod, Some(container)).await?;
        }
        Ok(())
    }

    /// The logs of a pod's container, and of the instance before it where it has restarted.
    async fn logs(&mut self, directory: &str, pod: &Value, container: Option<&str>) -> Result<(), String> {
        let [namespace, name] = ["namespace", "name"].map(|field| pod["metadata"][field].as_str().unwrap_or("?"));
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        for previous in [false, true] {
            if previous && !has_restarted(pod, container) {
                continue;
            }
            let parameters = LogParams {
                container: container.map(str::to_owned),
                previous,
                tail_lines: Some(self.tail),
                limit_bytes: Some(LOG_LIMIT),
                timestamps: true,
                ..LogParams::default()
            };
            let which = if previous { "previous.log" } else { "log" };
            match api.logs(name, &parameters).await {
                Ok(text) => self.write(&format!("{directory}/{namespace}/{name}.{which}"), &text)?,
                Err(error) => {
                    let reason = format!("cannot read the log of {namespace}/{name}: {}", describe_error(error));
                    self.unreadable.push(reason);
                }
            }
        }
        Ok(())
    }

    fn note<T>(&mut self, read: Result<T, String>) -> Option<T> {
        read.map_err(|reason| self.unreadable.push(reason)).ok()
    }

    fn write_json(&mut self, file: &str, value: &impl Serialize) -> Result<(), String> {
        let text = serde_json::to_string_pretty(value).map_err(|error| format!("{file} cannot be written: {error}"))?;
        self.write(file, &text)
    }

    fn write(&mut self, file: &str, text: &str) -> Result<(), String> {
        let path = self.directory.join(file);
        let directory = path.parent().unwrap_or(Path::new("."));
        let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
        written.map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        self.files.push(PathBuf::from(file));
        Ok(())
    }
}

/// Whether a container of a pod has been restarted; without a name, any container.
fn has_restarted(pod: &Value, container: Option<&str>) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses"].map(|list| pod["status"][list].as_array());
    let mut statuses = lists.into_iter().flatten().flatten();
    statuses.any(|status| {
        container.is_none_or(|name| status["name"] == name) && status["restartCount"].as_u64().unwrap_or_default() > 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fake::{Answer, client};
    use inject::Settings;

    fn request(directory: PathBuf) -> Request {
        let settings = Settings::new("shim:1");
        let scope = Scope { namespace: None, selector: String::new(), probe_in: None, settings };
        Request { directory, webhook_namespace: "aux".to_owned(), tail: 100, scope }
    }

    #[tokio::test]
    async fn findings_objects_statuses_and_logs_are_collected_without_secrets() {
        let webhook = json!({"metadata": {"namespace": "aux", "name": "istio-aux-0"},
            "status": {"containerStatuses": [{"name": "webhook", "restartCount": 1}]}});
        let labels = json!({"istio-aux.io/shim": "native"});
        let shimmed = json!({"metadata": {"namespace": "team", "name": "hello", "labels": labels}});
        let (client, requests) = client([
            Answer::ok("GET /api/v1/namespaces/aux/pods/istio-aux-0/log", json!("a log")),
            Answer::ok("GET /api/v1/namespaces/team/pods/hello/log?&container=aux-shim", json!("a log")),
            Answer::list("GET /api/v1/namespaces/aux/pods?", &[webhook]),
            Answer::list("GET /api/v1/pods?", &[shimmed]),
        ]);
        let parent = tempfile::tempdir().unwrap();
        let bundle = collect(&client, request(parent.path().join("bundle"))).await.unwrap();
        let files: Vec<String> = bundle.files.iter().map(|file| file.display().to_string()).collect();
        for file in [
            "versions.json",
            "webhook/pods.json",
            "webhook/aux/istio-aux-0.log",
            "webhook/aux/istio-aux-0.previous.log",
            "pods/team/hello.json",
            "pods/team/hello.log",
            "unreadable.json",
        ] {
            assert!(files.contains(&file.to_owned()), "{file}: {files:?}");
            assert!(parent.path().join("bundle").join(file).is_file(), "{file}");
        }
        let lines = requests.all();
        assert!(lines.iter().all(|line| !line.contains("/secrets")), "{lines:?}");
        let logs = lines.iter().filter(|line| line.contains("/log?"));
        assert!(logs.clone().all(|line| line.contains("tailLines=100") && line.contains("limitBytes=")), "{lines:?}");
        assert_eq!(logs.count(), 3);
    }

    #[tokio::test]
    async fn a_directory_that_is_there_is_not_written_to() {
        let (client, _) = client([]);
        let parent = tempfile::tempdir().unwrap();
        let error = collect(&client, request(parent.path().to_owned())).await.err().unwrap();
        assert!(error.contains("cannot be made"), "{error}");
    }
}
