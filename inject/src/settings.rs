//! The settings of an installation.

use std::fmt;

use contract::names::{PILOT_AGENT, SHIM_UID};
use contract::policy::RestartPolicy;
use contract::quantity;

/// The settings that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The shim's image, with its registry and its tag or digest.
    pub shim_image: String,
    /// `imagePullPolicy` of the shim's containers. `AlwaysPullImages` rejects any other than `Always` of containers that a
    /// policy adds, since the API server's plug-ins have run by then.
    pub pull_policy: PullPolicy,
    /// Secrets with which nodes pull the image, in the pod's namespace.
    pub pull_secrets: Vec<String>,
    /// The pods whose payload is to start after the proxy.
    pub hold: Hold,
    /// The way in which other containers get the shim's binary.
    pub delivery: Delivery,
    /// True if the server keeps `restartPolicy` on init containers (KEP-753).
    pub native_sidecars: bool,
    /// True if pods are to keep their PID namespaces apart: mode status in place of native and proxy.
    pub prefers_status: bool,
    /// The entrypoint of istio-proxy, where its container has no command.
    pub proxy_command: String,
    /// The shim's requests and limits.
    pub resources: ShimResources,
    /// The user that the shim's own containers run as.
    pub user: ShimUser,
}

/// Requests and limits of the shim's containers. `LimitRanger` rejects what is outside a namespace's bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShimResources {
    /// Quantities by the name of their resource.
    pub requests: Vec<(String, String)>,
    /// Quantities by the name of their resource.
    pub limits: Vec<(String, String)>,
}

/// The user that the shim's own containers run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShimUser {
    /// This user and group ID.
    Uid(u32),
    /// The user of istio-proxy, which Istio's injector takes from the namespace's range on `OpenShift`.
    Proxy,
    /// None is set: a security context constraint sets it, or else the image does.
    Unset,
}

/// `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Pull where the node does not have the image.
    IfNotPresent,
    /// Pull for every container.
    Always,
    /// Never pull.
    Never,
}

/// The pods that get the startup hold, `holdApplicationUntilProxyStarts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "args", derive(clap::ValueEnum))]
pub enum Hold {
    /// All.
    All,
    /// Those that run to completion.
    Completing,
    /// None.
    Never,
}

impl Hold {
    /// Returns true for pods of this policy; `None` is that of pods that do not run to completion.
    pub(crate) fn applies_to(self, policy: Option<RestartPolicy>) -> bool {
        self == Self::All || (self == Self::Completing && policy.is_some())
    }

    /// Returns the name that operators use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Completing => "completing",
            Self::Never => "never",
        }
    }
}

/// The way in which other containers get the shim's binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "args", derive(clap::ValueEnum))]
pub enum Delivery {
    /// An init container copies it into an emptyDir.
    Copy,
    /// The shim's image is mounted (KEP-4639): Kubernetes 1.35 with containerd 2.1 or CRI-O, and later.
    ImageVolume,
}

impl Settings {
    /// Returns the defaults, with this image of the shim.
    #[must_use]
    pub fn new(shim_image: &str) -> Self {
        Self {
            shim_image: shim_image.to_owned(),
            pull_policy: PullPolicy::IfNotPresent,
            pull_secrets: Vec::new(),
            hold: Hold::All,
            delivery: Delivery::Copy,
            native_sidecars: true,
            prefers_status: false,
            proxy_command: PILOT_AGENT.to_owned(),
            resources: ShimResources::default(),
            user: ShimUser::Uid(SHIM_UID),
        }
    }
}

/// The text is not a quantity of CPU or memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("takes cpu=QUANTITY and memory=QUANTITY, such as memory=4Mi")]
pub struct ParseQuantityError;

impl Default for ShimResources {
    fn default() -> Self {
        let owned = |name: &str, quantity: &str| (name.to_owned(), quantity.to_owned());
        // CRI-O rejects memory limits under 12 MiB.
        Self { requests: vec![owned("cpu", "1m"), owned("memory", "4Mi")], limits: vec![owned("memory", "16Mi")] }
    }
}

impl ShimResources {
    /// Parses `cpu=1m` or `memory=4Mi`. The API server would reject each pod with a quantity that it cannot parse.
    pub fn parse_quantity(text: &str) -> Result<(String, String), ParseQuantityError> {
        text.split_once('=')
            .map(|(name, quantity)| (name.trim(), quantity.trim()))
            .filter(|(name, quantity)| matches!(*name, "cpu" | "memory") && quantity::parse(quantity).is_some())
            .map(|(name, quantity)| (name.to_owned(), quantity.to_owned()))
            .ok_or(ParseQuantityError)
    }
}

impl fmt::Display for ShimUser {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Uid(uid) => uid.fmt(f),
            Self::Proxy => f.write_str("proxy"),
            Self::Unset => f.write_str("none"),
        }
    }
}

impl PullPolicy {
    /// Returns the name that Kubernetes uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

impl Delivery {
    /// Returns the name that operators use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::ImageVolume => "image-volume",
        }
    }
}
