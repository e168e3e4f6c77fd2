//! A pod as a decision sees it: only the fields it needs, borrowed from the raw JSON. What is not here is neither
//! read nor written, so fields newer than this program survive.

use std::borrow::Cow;

use contract::names::{DEFAULT_STATUS_PORT, PROXY_CONTAINER, SHIM_BINARY, SHIM_CONTAINER, STATUS_PORT_ANNOTATION};
use contract::policy::RestartPolicy;
use serde::Deserialize;
use serde_json::value::RawValue;

pub use super::document::{Map, RawText, Text};

/// A pod.
#[derive(Debug, Clone, Deserialize)]
pub struct Pod<'a> {
    /// `None` where the document has none, which a patch must mend before it adds to it.
    #[serde(borrow)]
    pub metadata: Option<Metadata<'a>>,
    /// The pod's specification.
    #[serde(borrow)]
    pub spec: Spec<'a>,
}

/// `metadata`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata<'a> {
    /// Absent when the name is generated.
    #[serde(borrow)]
    pub name: Option<Text<'a>>,
    /// What the API server makes the name from.
    #[serde(borrow)]
    pub generate_name: Option<Text<'a>>,
    /// Labels; absent and null are the same.
    #[serde(borrow)]
    pub labels: Option<Map<'a, Text<'a>>>,
    /// Annotations; absent and null are the same.
    #[serde(borrow)]
    pub annotations: Option<Map<'a, RawText<'a>>>,
    #[serde(borrow)]
    owner_references: Option<Vec<OwnerReference<'a>>>,
}

#[derive(Debug, Clone, Deserialize)]
struct OwnerReference<'a> {
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    controller: Option<bool>,
}

/// `spec`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec<'a> {
    /// The regular containers.
    #[serde(borrow)]
    pub containers: Vec<Container<'a>>,
    /// Init containers and native sidecars.
    #[serde(borrow)]
    pub init_containers: Option<Vec<Container<'a>>>,
    /// The pod's volumes.
    #[serde(borrow)]
    pub volumes: Option<Vec<Volume<'a>>>,
    #[serde(borrow)]
    restart_policy: Option<Text<'a>>,
    /// Whether containers see each other's processes.
    pub share_process_namespace: Option<bool>,
    /// The pod's own resources (KEP-2837).
    #[serde(borrow)]
    pub resources: Option<&'a RawValue>,
    /// Whether the pod is in the node's PID namespace.
    #[serde(rename = "hostPID")]
    pub host_pid: Option<bool>,
    /// Whether the pod is in the node's network namespace.
    pub host_network: Option<bool>,
    #[serde(borrow)]
    os: Option<Os<'a>>,
}

/// A container.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container<'a> {
    /// Its name, unique in the pod.
    #[serde(borrow)]
    pub name: Text<'a>,
    /// Its own restart policy; `Always` makes an init container a native sidecar (KEP-753).
    #[serde(borrow)]
    pub restart_policy: Option<Text<'a>>,
    /// Which exit codes restart it, before any policy (KEP-5307).
    #[serde(borrow)]
    pub restart_policy_rules: Option<Vec<RestartPolicyRule<'a>>>,
    /// Its command, where the image's own is not used.
    #[serde(borrow)]
    pub command: Option<Vec<Text<'a>>>,
    /// The arguments of its command.
    #[serde(borrow)]
    pub args: Option<Vec<Text<'a>>>,
    /// What it asks of the node.
    #[serde(borrow)]
    pub resources: Option<Resources<'a>>,
    /// What the kubelet runs when it starts and ends.
    #[serde(borrow)]
    pub lifecycle: Option<Lifecycle<'a>>,
    /// Where it sees volumes.
    #[serde(borrow)]
    pub volume_mounts: Option<Vec<VolumeMount<'a>>>,
    #[serde(borrow)]
    env: Option<Vec<EnvVar<'a>>>,
}

/// `resources`.
#[derive(Debug, Clone, Deserialize)]
pub struct Resources<'a> {
    #[serde(borrow)]
    requests: Quantities<'a>,
    #[serde(borrow)]
    limits: Quantities<'a>,
}

/// Quantities by the name of their resource, as they are written: numbers or strings.
type Quantities<'a> = Option<Map<'a, &'a RawValue>>;

impl Resources<'_> {
    /// What is asked for of a resource.
    #[must_use]
    pub fn request(&self, name: &str) -> Option<&str> {
        self.requests.as_ref()?.get(name).map(|quantity| quantity.get())
    }

    /// How much of a resource there may be at most.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&str> {
        self.limits.as_ref()?.get(name).map(|quantity| quantity.get())
    }
}

/// `lifecycle`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle<'a> {
    /// What is run when the container has started.
    #[serde(borrow)]
    pub post_start: Option<&'a RawValue>,
}

/// Where a container sees a volume.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount<'a> {
    /// The volume's name.
    #[serde(borrow)]
    pub name: Text<'a>,
    /// The path in the container.
    #[serde(borrow)]
    pub mount_path: Text<'a>,
}

/// One of `restartPolicyRules`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicyRule<'a> {
    /// What happens when the rule matches.
    #[serde(borrow)]
    pub action: Text<'a>,
    /// What it matches.
    #[serde(borrow)]
    pub exit_codes: Option<ExitCodes<'a>>,
}

/// Exit codes that a rule matches, or does not.
#[derive(Debug, Clone, Deserialize)]
pub struct ExitCodes<'a> {
    /// `In` or `NotIn`.
    #[serde(borrow)]
    pub operator: Text<'a>,
    /// The codes.
    #[serde(default)]
    pub values: Vec<i32>,
}

#[derive(Debug, Clone, Deserialize)]
struct EnvVar<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    /// Left as it lies: most are long, and one is asked for.
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

/// A volume, by name only.
#[derive(Debug, Clone, Deserialize)]
pub struct Volume<'a> {
    /// Its name, unique in the pod.
    #[serde(borrow)]
    pub name: Text<'a>,
}

#[derive(Debug, Clone, Deserialize)]
struct Os<'a> {
    #[serde(borrow)]
    name: Text<'a>,
}

/// How Istio's proxy is in a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// Not at all, or not yet.
    Absent,
    /// As one of the regular containers: the pod ends only when it does.
    Classic,
    /// As a native sidecar: the kubelet ends it.
    Native,
}

impl Pod<'_> {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.as_ref()?.labels.as_ref()?.get(key).map(Text::as_str)
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<Cow<'_, str>> {
        self.metadata.as_ref()?.annotations.as_ref()?.get(key).map(|value| value.to_str())
    }

    /// The pod's name, or what its name will be made from, for the log.
    #[must_use]
    pub fn display_name(&self) -> &str {
        let metadata = self.metadata.as_ref();
        let name = metadata.and_then(|metadata| metadata.name.as_ref().or(metadata.generate_name.as_ref()));
        name.map_or("", Text::as_str)
    }

    /// The controller that made the pod, `KIND/NAME`, for the log.
    #[must_use]
    pub fn owner(&self) -> Option<String> {
        let owners = self.metadata.as_ref()?.owner_references.as_ref()?;
        let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
        Some(format!("{}/{}", owner.kind.as_str(), owner.name.as_str()))
    }

    /// How Istio's proxy is in the pod.
    #[must_use]
    pub fn proxy(&self) -> Proxy {
        if self.classic_proxy().is_some() {
            Proxy::Classic
        } else if self.spec.init_container(PROXY_CONTAINER).is_some_and(Container::is_native_sidecar) {
            Proxy::Native
        } else {
            Proxy::Absent
        }
    }

    /// Whether the shim has a container of its own in the pod.
    #[must_use]
    pub fn has_native_shim(&self) -> bool {
        self.spec.init_container(SHIM_CONTAINER).is_some()
    }

    /// The proxy's place among the regular containers.
    #[must_use]
    pub fn classic_proxy(&self) -> Option<usize> {
        self.spec.containers.iter().position(|container| container.name.as_str() == PROXY_CONTAINER)
    }

    /// Whether a regular container has a command of its own.
    #[must_use]
    pub fn has_command(&self, name: &str) -> bool {
        let container = self.spec.containers.iter().find(|container| container.name.as_str() == name);
        container.is_some_and(|container| container.command.as_ref().is_some_and(|command| !command.is_empty()))
    }

    /// The port on which pilot-agent answers, 0 where it is off; `None` where what says so cannot be read.
    /// The annotation comes before `statusPort` in the proxy's own configuration (istio#18505).
    #[must_use]
    pub fn status_port(&self) -> Option<u16> {
        if let Some(text) = self.annotation(STATUS_PORT_ANNOTATION) {
            return text.trim().parse().ok();
        }
        match self.proxy_env(PROXY_CONFIG_ENV) {
            None => Some(DEFAULT_STATUS_PORT),
            Some(config) => {
                let config: PartOfProxyConfig = serde_json::from_str(&config).ok()?;
                Some(config.status_port.unwrap_or(DEFAULT_STATUS_PORT))
            }
        }
    }

    fn proxy_env(&self, name: &str) -> Option<String> {
        let proxy = &self.spec.containers[self.classic_proxy()?];
        let variable = proxy.env.as_ref()?.iter().find(|variable| variable.name.as_str() == name)?;
        serde_json::from_str(variable.value?.get()).ok()
    }
}

/// Environment variable of istio-proxy that holds its `ProxyConfig` in JSON.
const PROXY_CONFIG_ENV: &str = "PROXY_CONFIG";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartOfProxyConfig {
    status_port: Option<u16>,
}

impl<'a> Spec<'a> {
    /// The restart policy, where it lets the pod complete. The API server has filled it in: absent means Always.
    #[must_use]
    pub fn restart_policy(&self) -> Option<RestartPolicy> {
        let policy = self.restart_policy.as_ref()?.as_str().parse().ok()?;
        (policy != RestartPolicy::Always).then_some(policy)
    }

    /// Whether the pod says that it runs on Windows.
    #[must_use]
    pub fn is_windows(&self) -> bool {
        self.os.as_ref().is_some_and(|os| os.name.as_str() == "windows")
    }

    fn init_container(&self, name: &str) -> Option<&Container<'a>> {
        self.init_containers.as_ref()?.iter().find(|container| container.name.as_str() == name)
    }
}

impl Container<'_> {
    /// Whether its command is run by the shim as this subcommand.
    #[must_use]
    pub fn is_run_by_shim(&self, subcommand: &str) -> bool {
        let words: Vec<&str> = self.command.iter().flatten().map(Text::as_str).take(2).collect();
        words == [SHIM_BINARY, subcommand]
    }

    fn is_native_sidecar(&self) -> bool {
        self.restart_policy.as_ref().is_some_and(|policy| policy.as_str() == "Always")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(metadata: &str) -> serde_json::Result<Pod<'_>> {
        serde_json::from_str(metadata)
    }

    #[test]
    fn an_annotation_is_read_with_its_escapes() {
        let cases = [
            (r#""plain""#, "plain"),
            (r#""""#, ""),
            (r#""{\"a\": \"b\"}""#, r#"{"a": "b"}"#),
            (r#""a\n\u00e4""#, "a\nä"),
            (r#""ends with \"""#, r#"ends with ""#),
        ];
        for (raw, value) in cases {
            let text = format!(r#"{{"metadata": {{"annotations": {{"key": {raw} }}}}, "spec": {{"containers": []}}}}"#);
            assert_eq!(pod(&text).unwrap().annotation("key").as_deref(), Some(value), "{raw}");
        }
    }

    #[test]
    fn what_is_no_map_of_strings_is_refused_with_what_it_is() {
        let cases = [
            (r#"{"annotations": {"key": true}}"#, "invalid type: boolean, expected a string"),
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
    fn the_last_of_a_key_counts() {
        let text = r#"{"metadata": {"labels": {"a": "1", "b": "2", "a": "3"}}, "spec": {"containers": []}}"#;
        assert_eq!(pod(text).unwrap().label("a"), Some("3"));
        assert_eq!(pod(text).unwrap().label("c"), None);
    }
}
