//! A container as a decision sees it: see [`super::pod`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use contract::names::SHIM_BINARY;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::bounded;

/// The number of words of a command up to which a pod is changed.
pub(super) const WORD_LIMIT: usize = 10_000;
/// The image of a proxy, or gateway, that Istio's injector is to fill in.
const AUTO_IMAGE: &str = "auto";

/// A container.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name, unique in the pod.
    pub name: String,
    /// Its own restart policy; `Always` makes an init container a native sidecar (KEP-753).
    pub restart_policy: Option<String>,
    /// Rules by exit code, which precede any policy (KEP-5307).
    pub restart_policy_rules: Option<Vec<RestartPolicyRule>>,
    pub(crate) liveness_probe: Option<Box<RawValue>>,
    pub(crate) readiness_probe: Option<Box<RawValue>>,
    pub(crate) startup_probe: Option<Box<RawValue>>,
    pub(crate) ports: Option<Box<RawValue>>,
    resize_policy: Option<Vec<ResizePolicy>>,
    /// Its command, where the image's own is not used.
    #[serde(default, deserialize_with = "bounded::optional_list::<_, _, WORD_LIMIT>")]
    pub command: Option<Vec<String>>,
    /// The arguments of its command.
    pub args: Option<Vec<String>>,
    /// Its requests and limits.
    pub resources: Option<Resources>,
    /// The hooks that the kubelet runs when it starts and ends.
    pub lifecycle: Option<Lifecycle>,
    /// The mounts of its volumes.
    pub volume_mounts: Option<Vec<VolumeMount>>,
    image: Option<String>,
    security_context: Option<SecurityContext>,
    pub(crate) env: Option<Vec<EnvVar>>,
}

/// `securityContext`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecurityContext {
    run_as_user: Option<i64>,
}

/// `resources`.
#[derive(Debug, Clone, Deserialize)]
pub struct Resources {
    requests: Quantities,
    limits: Quantities,
}

/// Quantities by the name of their resource, as they are written: numbers or strings.
type Quantities = Option<BTreeMap<String, Box<RawValue>>>;

impl Resources {
    pub(crate) fn request(&self, name: &str) -> Option<Cow<'_, str>> {
        quantity(self.requests.as_ref(), name)
    }

    pub(crate) fn limit(&self, name: &str) -> Option<Cow<'_, str>> {
        quantity(self.limits.as_ref(), name)
    }
}

fn quantity<'q>(quantities: Option<&'q BTreeMap<String, Box<RawValue>>>, name: &str) -> Option<Cow<'q, str>> {
    let raw = quantities?.get(name)?.get();
    // A number of JSON is a quantity, too.
    Some(if raw.starts_with('"') {
        Cow::Owned(serde_json::from_str(raw).unwrap_or_default())
    } else {
        Cow::Borrowed(raw)
    })
}

/// `lifecycle`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// The hook after the container's start.
    pub post_start: Option<Box<RawValue>>,
}

/// The mount of a volume in a container.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// The volume's name.
    pub name: String,
    /// The path in the container.
    pub mount_path: String,
}

/// One of `restartPolicyRules`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartPolicyRule {
    /// The action when the rule matches.
    pub action: String,
    /// The exit codes that it matches.
    pub exit_codes: Option<ExitCodes>,
}

/// Exit codes that a rule matches, or does not.
#[derive(Debug, Clone, Deserialize)]
pub struct ExitCodes {
    /// `In` or `NotIn`.
    pub operator: String,
    /// The codes.
    #[serde(default)]
    pub values: Vec<i32>,
}

/// One of `resizePolicy`: the effect of a changed resource on the running container.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResizePolicy {
    restart_policy: Option<String>,
}

/// An environment variable.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct EnvVar {
    name: String,
    pub(crate) value: Option<String>,
}

impl Container {
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name
    }

    /// Returns true if Istio's injector is still to fill in its image.
    pub(crate) fn has_auto_image(&self) -> bool {
        self.image.as_deref() == Some(AUTO_IMAGE)
    }

    /// Returns the user of its security context.
    pub(crate) fn run_as_user(&self) -> Option<i64> {
        self.security_context.as_ref()?.run_as_user
    }

    /// Returns an environment variable that it sets itself.
    pub(crate) fn variable(&self, name: &str) -> Option<&EnvVar> {
        self.env.iter().flatten().find(|variable| variable.name == name)
    }

    /// Returns true if a volume is mounted at this path.
    pub(crate) fn mounts_at(&self, path: &str) -> bool {
        let mounts = self.volume_mounts.iter().flatten();
        mounts.map(|mount| mount.mount_path.as_str().trim_end_matches('/')).any(|mounted| mounted == path)
    }

    /// Returns true if it has a command of its own, instead of the image's.
    pub(crate) fn has_command(&self) -> bool {
        self.command.as_ref().is_some_and(|command| !command.is_empty())
    }

    /// Returns true if the shim runs its command, by this subcommand.
    pub(crate) fn is_run_by_shim(&self, subcommand: &str) -> bool {
        let words: Vec<&str> = self.command.iter().flatten().map(String::as_str).take(2).collect();
        words == [SHIM_BINARY, subcommand]
    }

    /// Returns true if this is a word of its command or its arguments.
    pub(crate) fn has_word(&self, word: &str) -> bool {
        self.command.iter().chain(&self.args).flatten().any(|other| other == word)
    }

    /// Returns true if the kubelet may end it while it runs: after a failed probe, or to resize it.
    pub(crate) fn may_be_ended_by_kubelet(&self) -> bool {
        let restarts = |resize: &ResizePolicy| resize.restart_policy.as_deref() == Some("RestartContainer");
        self.liveness_probe.is_some()
            || self.startup_probe.is_some()
            || self.resize_policy.iter().flatten().any(restarts)
    }

    pub(crate) fn is_native_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}
