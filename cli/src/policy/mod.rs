//! Renders the policy profile: the decision as `MutatingAdmissionPolicy` objects (KEP-3962), from `policy.yaml` with the
//! contract's names and the operator's settings.

use anyhow::{Result, bail};
use clap::ValueEnum;
use contract::names::{DEFAULT_STATUS_PORT, KATIB_COLLECTORS, SANDBOXED_RUNTIMES};
use inject::{Settings, ShimUser};

const TEXT: &str = include_str!("policy.yaml");
const ENDED: &str = include_str!("ended.yaml");
/// Keeps others from writing the annotation: the same object as in the webhook profile.
const GUARD: &str = include_str!("../../../deploy/base/ended-policy.yaml");

/// Pairs the name of each constant of a module of the contract with its value.
macro_rules! named {
    ($($module:ident: $($name:ident),*;)*) => { &[$($((stringify!($name), contract::$module::$name)),*),*] };
}

/// Lists the constants of the contract that the text refers to.
const NAMES: &[(&str, &str)] = named! {
    args:
        WATCH, SUPERVISE, INSTALL, START_AFTER, ARGUMENT, AWAIT, HELPER, MAY_RESTART, RESTART_POLICY,
        PROXY, STATUS_PORT, QUIT, ANNOTATIONS, ALL_MAY_RESTART, REPORT_ONLY, STAY, END_OF_OPTIONS;
    names:
        SHIM_REQUESTS_ANNOTATION, SHIM_LIMITS_ANNOTATION, ISTIO_STATUS_ANNOTATION, TEMPLATES_ANNOTATION,
        GATEWAY_NAME_LABEL, MANAGED_GATEWAY_LABEL, INJECTION_LABEL, LEGACY_INJECTION_LABEL, ENABLED, DISABLED,
        MODE_ANNOTATION, WAIT_FOR_ANNOTATION, QUIT_ANNOTATION, STATUS_ANNOTATION, ENDED_ANNOTATION, SHIM_LABEL,
        ISTIO_INJECT,
        NATIVE_SIDECAR_ANNOTATION, PROXY_CONFIG_ANNOTATION, HOLD_FIELD, STATUS_PORT_ANNOTATION, PROXY_CONTAINER,
        SHIM_CONTAINER, INSTALL_CONTAINER, SHIM_BINARY, BINARY_DIR, SHIM_VOLUME, ANNOTATIONS_VOLUME, ANNOTATIONS_DIR,
        ANNOTATIONS_FILE, ISTIO_POD_DIR, KATIB_TRIAL_LABEL, KATIB_COLLECTOR_OPTION, KATIB_COMPLETED_MARKER, ARGO_WORKFLOW_LABEL,
        ARGO_KILL_PROXY_ANNOTATION, ARGO_NOOP_COMMAND;
};

/// Selects the version of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum ApiVersion {
    /// Kubernetes 1.36 and later
    V1,
    /// Kubernetes 1.34 and 1.35, where the feature gate and the version are on
    V1Beta1,
}

impl ApiVersion {
    fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

/// Returns the objects in YAML. `Err` for a setting that would not stay a string of CEL.
pub(crate) fn manifests(settings: &Settings, version: ApiVersion) -> Result<String> {
    for (option, value) in [("--shim-image", &settings.shim_image), ("--proxy-command", &settings.proxy_command)] {
        if !value.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c)) {
            bail!("{option}: {value:?} has characters that no image and no path of a policy may have");
        }
    }
    let settings: &[(&str, &str)] = &[
        ("API_VERSION", version.as_str()),
        ("VERSION", env!("CARGO_PKG_VERSION")),
        ("IMAGE", &settings.shim_image),
        ("PULL_POLICY", settings.pull_policy.as_str()),
        ("DELIVERY", settings.delivery.as_str()),
        ("REQUESTS", &quantities(&settings.resources.requests)),
        ("LIMITS", &quantities(&settings.resources.limits)),
        ("USER", &user(settings.user)),
        ("PROXY_COMMAND", &settings.proxy_command),
        ("DEFAULT_PORT", &DEFAULT_STATUS_PORT.to_string()),
        ("KATIB_COLLECTORS", &list(&KATIB_COLLECTORS)),
        ("SANDBOXED_RUNTIMES", &list(&SANDBOXED_RUNTIMES)),
    ];
    let [first, second] = by_kind();
    Ok(fill(&fill(&[&first, &second, ENDED, GUARD].join("---\n"), settings), NAMES))
}

/// Renders the text for each kind of pod. As with the webhook, a failure rejects pods that run to completion only.
fn by_kind() -> [String; 2] {
    [("run-to-completion", "Fail", "!="), ("long-running", "Ignore", "==")].map(|(kind, failure, is_always)| {
        let condition = format!("object.spec.?restartPolicy.orValue('Always') {is_always} 'Always'");
        let policy = format!("istio-aux-{kind}");
        let names =
            [("POLICY", &*policy), ("KIND", kind), ("FAILURE_POLICY", failure), ("MATCH_CONDITION", &condition)];
        fill(TEXT, &names)
    })
}

fn fill(text: &str, names: &[(&str, &str)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("%{name}%"), value))
}

/// Renders a list of strings in CEL.
fn list(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(", "))
}

/// Renders a map in CEL.
fn quantities(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, quantity)| format!("'{name}': '{quantity}'")).collect();
    format!("{{{}}}", pairs.join(", "))
}

/// Renders the user of a container's security context in CEL.
fn user(user: ShimUser) -> String {
    match user {
        ShimUser::Uid(uid) => format!("runAsUser: {uid}, runAsGroup: {uid}, "),
        ShimUser::Proxy => "?runAsUser: variables.isClassic \
            ? variables.containers[variables.at].?securityContext.?runAsUser : optional.none(), "
            .to_owned(),
        ShimUser::Unset => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/istio-aux/policy/policy.yaml");

    fn by_default() -> String {
        let image = format!("{}:{}", contract::names::SHIM_IMAGE, env!("CARGO_PKG_VERSION"));
        manifests(&Settings::new(&image), ApiVersion::V1).unwrap()
    }

    #[test]
    fn every_name_is_filled_in() {
        let text = by_default();
        let left: Vec<&str> = text.split('%').skip(1).step_by(2).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn value_that_ends_a_string_is_rejected() {
        let refused = manifests(&Settings::new("shim'+'"), ApiVersion::V1).unwrap_err().to_string();
        assert!(refused.starts_with("--shim-image: \"shim'+'\""), "{refused}");
    }

    #[test]
    fn chart_has_what_the_command_prints() {
        if std::env::var_os("UPDATE_DEPLOY").is_some() {
            std::fs::write(FILE, by_default()).unwrap();
        }
        let written = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(written == by_default(), "{FILE} is older; next: UPDATE_DEPLOY=1 cargo test -p cli policy");
    }
}
