//! A pod as a decision sees it: only the fields it needs, borrowed from the raw JSON. What is not here is neither
//! read nor written, so fields newer than this program survive.

use std::borrow::Cow;

use contract::names::{DEFAULT_STATUS_PORT, PROXY_CONTAINER, SANDBOXED_RUNTIMES, STATUS_PORT_ANNOTATION};
use contract::policy::RestartPolicy;
use serde::Deserialize;
use serde_json::value::RawValue;

pub use super::container::{Container, ExitCodes, Lifecycle, Resources, RestartPolicyRule, VolumeMount};
pub use crate::raw_json::{BorrowedStr, RawStr, VecMap};

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
    pub name: Option<BorrowedStr<'a>>,
    /// What the API server makes the name from.
    #[serde(borrow)]
    pub generate_name: Option<BorrowedStr<'a>>,
    /// Labels; absent and null are the same.
    #[serde(borrow)]
    pub labels: Option<VecMap<'a, BorrowedStr<'a>>>,
    /// Annotations; absent and null are the same.
    #[serde(borrow)]
    pub annotations: Option<VecMap<'a, RawStr<'a>>>,
    #[serde(borrow)]
    owner_references: Option<Vec<OwnerReference<'a>>>,
}

#[derive(Debug, Clone, Deserialize)]
struct OwnerReference<'a> {
    #[serde(borrow)]
    kind: BorrowedStr<'a>,
    #[serde(borrow)]
    name: BorrowedStr<'a>,
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
    restart_policy: Option<BorrowedStr<'a>>,
    /// Whether containers see each other's processes.
    pub share_process_namespace: Option<bool>,
    /// The pod's own resources (KEP-2837).
    #[serde(borrow)]
    pub resources: Option<&'a RawValue>,
    #[serde(borrow)]
    runtime_class_name: Option<BorrowedStr<'a>>,
    /// Whether the pod is in the node's PID namespace.
    #[serde(rename = "hostPID")]
    pub host_pid: Option<bool>,
    /// Whether the pod is in the node's network namespace.
    pub host_network: Option<bool>,
    #[serde(borrow)]
    os: Option<Os<'a>>,
}

/// A volume, by name only.
#[derive(Debug, Clone, Deserialize)]
pub struct Volume<'a> {
    /// Its name, unique in the pod.
    #[serde(borrow)]
    pub name: BorrowedStr<'a>,
}

#[derive(Debug, Clone, Deserialize)]
struct Os<'a> {
    #[serde(borrow)]
    name: BorrowedStr<'a>,
}

impl Pod<'_> {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.as_ref()?.labels.as_ref()?.get(key).map(BorrowedStr::as_str)
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
        name.map_or("", BorrowedStr::as_str)
    }

    /// The controller that made the pod, `KIND/NAME`, for the log.
    #[must_use]
    pub fn owner(&self) -> Option<String> {
        let owners = self.metadata.as_ref()?.owner_references.as_ref()?;
        let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
        Some(format!("{}/{}", owner.kind.as_str(), owner.name.as_str()))
    }

    /// The name of the workload that the pod is of: its controller's, without what a `ReplicaSet` adds to its Deployment's.
    pub(crate) fn workload_name(&self) -> &str {
        let owners = self.metadata.as_ref().and_then(|metadata| metadata.owner_references.as_ref());
        let owner = owners.into_iter().flatten().find(|owner| owner.controller == Some(true));
        let Some(name) = owner.map(|owner| owner.name.as_str()) else {
            return self.display_name().trim_end_matches('-');
        };
        let hash = self.label("pod-template-hash").and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'));
        hash.unwrap_or(name)
    }

    /// The port on which pilot-agent answers, 0 where it is off; `None` where its setting cannot be read. The annotation
    /// takes precedence over `statusPort` of the proxy's `ProxyConfig` (istio#18505).
    #[must_use]
    pub fn status_port(&self) -> Option<u16> {
        if let Some(text) = self.annotation(STATUS_PORT_ANNOTATION) {
            return text.trim().parse().ok();
        }
        match self.proxy_config() {
            None => Some(DEFAULT_STATUS_PORT),
            Some(config) => {
                let config: PartOfProxyConfig = serde_json::from_str(&config).ok()?;
                Some(config.status_port.unwrap_or(DEFAULT_STATUS_PORT))
            }
        }
    }

    /// The `ProxyConfig` of a proxy that is a regular container.
    fn proxy_config(&self) -> Option<String> {
        let proxy = self.spec.containers.iter().find(|container| container.is_named(PROXY_CONTAINER))?;
        proxy.env_value(PROXY_CONFIG_ENV)
    }

    /// All containers but ephemeral ones, which no new pod has.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container<'_>> {
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

impl Spec<'_> {
    /// The restart policy, where it lets the pod complete. The API server has filled it in: absent means Always.
    #[must_use]
    pub fn restart_policy(&self) -> Option<RestartPolicy> {
        let policy = self.restart_policy.as_ref()?.as_str().parse().ok()?;
        (policy != RestartPolicy::Always).then_some(policy)
    }

    /// The pod's runtime class; an empty name is none.
    pub(crate) fn runtime_class(&self) -> Option<&str> {
        self.runtime_class_name.as_ref().map(BorrowedStr::as_str).filter(|class| !class.is_empty())
    }

    /// Whether the pod says that it runs on Windows.
    #[must_use]
    pub fn is_windows(&self) -> bool {
        self.os.as_ref().is_some_and(|os| os.name.as_str() == "windows")
    }

    /// Whether the pod's runtime class is one of gVisor or Kata Containers, by its name.
    #[must_use]
    pub fn is_sandboxed(&self) -> bool {
        self.runtime_class_name.as_ref().is_some_and(|class| {
            let class = class.as_str().to_ascii_lowercase();
            SANDBOXED_RUNTIMES.into_iter().any(|runtime| class.contains(runtime))
        })
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
