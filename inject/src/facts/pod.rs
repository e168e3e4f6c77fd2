//! A pod as a decision sees it: only the fields that it needs. Others are neither read nor written, so fields newer than
//! this program survive.

use std::collections::BTreeMap;

use contract::names::{DEFAULT_STATUS_PORT, ISTIO_INJECT, PROXY_CONTAINER, SANDBOXED_RUNTIMES, STATUS_PORT_ANNOTATION};
use contract::policy::RestartPolicy;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::bounded;
use super::container::WORD_LIMIT;
pub use super::container::{Container, ExitCodes, Lifecycle, Resources, RestartPolicyRule, VolumeMount};

/// The number of containers, init containers included, up to which a pod is changed.
const CONTAINER_LIMIT: usize = 500;

/// A pod.
#[derive(Debug, Clone, Deserialize)]
pub struct Pod {
    /// `None` where the document has none: a patch then has to add it first.
    pub metadata: Option<Metadata>,
    /// The pod's specification.
    pub spec: Spec,
    /// The pod's status, which the kubelet reports.
    #[serde(default)]
    pub status: Status,
}

/// `status`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

#[derive(Debug, Clone, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ContainerState {
    terminated: Option<Terminated>,
}

/// The end of a container's last run.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminated {
    /// The exit code, 0 to 255.
    pub exit_code: i32,
    /// The kubelet's reason, such as `Completed`.
    pub reason: Option<String>,
}

impl Status {
    /// Returns true if this condition holds.
    pub(crate) fn has_condition(&self, kind: &str) -> bool {
        self.conditions.iter().flatten().any(|condition| condition.r#type == kind && condition.status == "True")
    }

    /// Returns the ends of containers that have started and do not run, init containers too, by name.
    pub(crate) fn ends(&self) -> BTreeMap<&str, &Terminated> {
        let statuses = self.container_statuses.iter().chain(&self.init_container_statuses).flatten();
        statuses.filter_map(|status| Some((status.name.as_str(), status.state.terminated.as_ref()?))).collect()
    }
}

/// `metadata`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Absent when the name is generated.
    pub name: Option<String>,
    /// The prefix of a name that the API server generates.
    pub generate_name: Option<String>,
    /// Labels; absent and null are the same.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations; absent and null are the same.
    pub annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Debug, Clone, Deserialize)]
struct OwnerReference {
    kind: String,
    name: String,
    controller: Option<bool>,
}

/// `spec`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The regular containers.
    #[serde(deserialize_with = "bounded::list::<_, _, CONTAINER_LIMIT>")]
    pub containers: Vec<Container>,
    /// Init containers and native sidecars.
    #[serde(default, deserialize_with = "bounded::optional_list::<_, _, CONTAINER_LIMIT>")]
    pub init_containers: Option<Vec<Container>>,
    /// The pod's volumes.
    pub volumes: Option<Vec<Named>>,
    restart_policy: Option<String>,
    /// True if containers see each other's processes.
    pub share_process_namespace: Option<bool>,
    /// The pod's own resources (KEP-2837).
    pub resources: Option<Box<RawValue>>,
    runtime_class_name: Option<String>,
    /// True if the pod is in the node's PID namespace.
    #[serde(rename = "hostPID")]
    pub host_pid: Option<bool>,
    /// True if the pod is in the node's network namespace.
    pub host_network: Option<bool>,
    /// False if the pod is in a user namespace of its own (KEP-127).
    pub host_users: Option<bool>,
    /// Secrets with which nodes pull the pod's images.
    pub image_pull_secrets: Option<Vec<Named>>,
    node_selector: Option<BTreeMap<String, String>>,
    os: Option<Os>,
}

/// A volume or a reference to a Secret, by name only.
#[derive(Debug, Clone, Deserialize)]
pub struct Named {
    /// Its name, unique in its list. The API server admits references without one.
    #[serde(default)]
    pub name: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Os {
    name: String,
}

impl Pod {
    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.as_ref()?.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.as_ref()?.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns what the pod says of Istio's injection. The label takes precedence, as in Istio's injector.
    pub(crate) fn istio_injection(&self) -> Option<&str> {
        self.label(ISTIO_INJECT).or_else(|| self.annotation(ISTIO_INJECT))
    }

    /// Returns the pod's name, or the prefix that its name will have, for the log.
    #[must_use]
    pub fn display_name(&self) -> &str {
        let metadata = self.metadata.as_ref();
        let name = metadata.and_then(|metadata| metadata.name.as_deref().or(metadata.generate_name.as_deref()));
        name.unwrap_or_default()
    }

    /// Returns the controller that made the pod, `KIND/NAME`, for the log.
    #[must_use]
    pub fn owner(&self) -> Option<String> {
        let owner = self.controller()?;
        Some(format!("{}/{}", owner.kind, owner.name))
    }

    fn controller(&self) -> Option<&OwnerReference> {
        let owners = self.metadata.as_ref()?.owner_references.as_ref()?;
        owners.iter().find(|owner| owner.controller == Some(true))
    }

    /// Returns the name of the pod's workload as Istio's injector does (`GetDeployMetaFromPod` in its `pkg/kube/util.go`): of a pod
    /// with a generated name, its controller's, or that of the Deployment, `CronJob` or the like which made the controller.
    pub(crate) fn workload_name(&self) -> &str {
        let is_generated = self.metadata.as_ref().is_some_and(|metadata| metadata.generate_name.is_some());
        let Some(OwnerReference { name, kind, .. }) = self.controller().filter(|_| is_generated) else {
            return self.display_name().trim_end_matches('-');
        };
        let before = |suffix: &str| name.strip_suffix(suffix)?.strip_suffix('-');
        let maker = match kind.as_str() {
            "ReplicaSet" => {
                ["pod-template-hash", "rollouts-pod-template-hash"].into_iter().find_map(|key| before(self.label(key)?))
            }
            "ReplicationController" => self.label("deploymentconfig"),
            "Job" => name.rsplit_once('-').and_then(|(cron_job, time)| {
                let is_time = (8..=10).contains(&time.len()) && time.bytes().all(|byte| byte.is_ascii_digit());
                is_time.then_some(cron_job)
            }),
            _ => None,
        };
        maker.filter(|name| !name.is_empty()).unwrap_or(name)
    }

    /// Returns pilot-agent's port, 0 where it is off; `None` where its setting cannot be parsed. The annotation
    /// takes precedence over `statusPort` of the proxy's `ProxyConfig` (istio#18505).
    #[must_use]
    pub fn status_port(&self) -> Option<u16> {
        if let Some(text) = self.annotation(STATUS_PORT_ANNOTATION) {
            return text.trim().parse().ok();
        }
        let proxy = self.spec.containers.iter().find(|container| container.is_named(PROXY_CONTAINER));
        let config = proxy.and_then(|proxy| proxy.variable(PROXY_CONFIG_ENV)?.value.as_deref());
        let Some(config) = config else { return Some(DEFAULT_STATUS_PORT) };
        let config: PartOfProxyConfig = serde_json::from_str(config).ok()?;
        Some(config.status_port.unwrap_or(DEFAULT_STATUS_PORT))
    }

    /// Returns why the pod is left alone for its size, which bounds the time and the memory of a decision.
    pub(crate) fn excess(&self) -> Option<&'static str> {
        if self.all_containers().count() > CONTAINER_LIMIT {
            Some("it has more than 500 containers")
        } else if self.all_containers().any(|container| container.command.iter().flatten().count() > WORD_LIMIT) {
            Some("it has a command of more than 10000 words")
        } else {
            None
        }
    }

    /// Returns all containers but ephemeral ones, which no new pod has.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(self.spec.init_containers.iter().flatten())
    }
}

/// Istio-proxy's environment variable with its `ProxyConfig` in JSON.
const PROXY_CONFIG_ENV: &str = "PROXY_CONFIG";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartOfProxyConfig {
    status_port: Option<u16>,
}

impl Spec {
    /// Returns the restart policy of a pod that runs to completion. The API server has filled it in: absent means Always.
    #[must_use]
    pub fn restart_policy(&self) -> Option<RestartPolicy> {
        let policy = self.restart_policy.as_ref()?.as_str().parse().ok()?;
        (policy != RestartPolicy::Always).then_some(policy)
    }

    /// Returns the pod's runtime class; an empty name counts as absent.
    pub(crate) fn runtime_class(&self) -> Option<&str> {
        self.runtime_class_name.as_deref().filter(|class| !class.is_empty())
    }

    /// Returns true if the pod's OS is Windows, or its node's is to be.
    #[must_use]
    pub fn is_windows(&self) -> bool {
        let selected = self.node_selector.as_ref().and_then(|selector| selector.get("kubernetes.io/os"));
        self.os.as_ref().map(|os| &os.name).or(selected).is_some_and(|os| os == "windows")
    }

    /// Returns true if the runtime class is gVisor's or Kata Containers', by its name.
    #[must_use]
    pub fn is_sandboxed(&self) -> bool {
        self.runtime_class_name.as_ref().is_some_and(|class| {
            let class = class.to_ascii_lowercase();
            SANDBOXED_RUNTIMES.into_iter().any(|runtime| class.contains(runtime))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(text: &str) -> serde_json::Result<Pod> {
        serde_json::from_str(text)
    }

    #[test]
    fn annotation_escapes_are_decoded() {
        let cases = [
            (r#""plain""#, "plain"),
            (r#""""#, ""),
            (r#""{\"a\": \"b\"}""#, r#"{"a": "b"}"#),
            (r#""a\n\u00e4""#, "a\nä"),
            (r#""ends with \"""#, r#"ends with ""#),
        ];
        for (raw, value) in cases {
            let text = format!(r#"{{"metadata": {{"annotations": {{"key": {raw} }}}}, "spec": {{"containers": []}}}}"#);
            assert_eq!(pod(&text).unwrap().annotation("key"), Some(value), "{raw}");
        }
    }

    #[test]
    fn lists_are_read_up_to_their_limits() {
        let words = format!(r#"{{"name": "main", "command": [{}""]}}"#, r#""","#.repeat(50_000));
        let read = pod(&format!(r#"{{"spec": {{"containers": [{words}]}}}}"#)).unwrap();
        assert_eq!(read.spec.containers[0].command.as_ref().map(Vec::len), Some(WORD_LIMIT + 1));
        assert_eq!(read.excess(), Some("it has a command of more than 10000 words"));
        let containers = format!(r#"[{}{{"name": "main"}}]"#, r#"{"name": ""},"#.repeat(50_000));
        let read = pod(&format!(r#"{{"spec": {{"containers": {containers}, "initContainers": null}}}}"#)).unwrap();
        assert_eq!(read.spec.containers.len(), CONTAINER_LIMIT + 1);
        assert_eq!(read.excess(), Some("it has more than 500 containers"));
    }

    #[test]
    fn wrong_type_in_metadata_is_rejected() {
        let cases = [
            (r#"{"annotations": {"key": true}}"#, "invalid type: boolean `true`, expected a string"),
            (r#"{"annotations": {"key": null}}"#, "invalid type: null, expected a string"),
            (r#"{"annotations": ["key"]}"#, "invalid type: sequence, expected a map"),
            (r#"{"labels": {"key": 1}}"#, "invalid type: integer `1`, expected a string"),
        ];
        for (metadata, message) in cases {
            let text = format!(r#"{{"metadata": {metadata}, "spec": {{"containers": []}}}}"#);
            let error = pod(&text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{metadata}: {error}");
        }
    }

    #[test]
    fn duplicate_key_counts_by_its_last_value() {
        let text = r#"{"metadata": {"labels": {"a": "1", "b": "2", "a": "3"}}, "spec": {"containers": []}}"#;
        assert_eq!(pod(text).unwrap().label("a"), Some("3"));
        assert_eq!(pod(text).unwrap().label("c"), None);
    }
}
