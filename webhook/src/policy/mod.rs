//! The policy profile: the decision as objects of the API server's own, `MutatingAdmissionPolicy` (KEP-3962). The text is
//! `policy.yaml`; what is filled in are the contract's names and the operator's settings.

use clap::ValueEnum;
use contract::args::{
    AWAIT, CONTAINER_POLICY, END_OF_OPTIONS, INSTALL, OUTLIVE, PROXY, QUIT, RESTART_POLICY, STATE, STATUS_PORT,
    SUPERVISE, WATCH,
};
use contract::names::{
    ARGO_WORKFLOW_LABEL, BINARY_FOLDER, DEFAULT_STATUS_PORT, DISABLED, ENABLED, HOLD_FIELD, INJECTION_LABEL,
    INSTALL_CONTAINER, ISTIO_DATA_VOLUME, ISTIO_INJECT, KATIB_COLLECTORS, KATIB_TRIAL_LABEL, LEGACY_INJECTION_LABEL,
    MODE_ANNOTATION, NATIVE_SIDECAR_ANNOTATION, PROXY_CONFIG_ANNOTATION, PROXY_CONTAINER, QUIT_ANNOTATION, SHIM_BINARY,
    SHIM_CONTAINER, SHIM_LABEL, SHIM_UID, STATE_FOLDER, STATUS_ANNOTATION, STATUS_PORT_ANNOTATION, VOLUME,
    WAIT_FOR_ANNOTATION,
};
use inject::Settings;

const TEXT: &str = include_str!("policy.yaml");

/// Which version of the API the server has.
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

/// The objects, in YAML. `Err` is one line for a setting that would not stay a string of CEL.
pub(crate) fn manifests(settings: &Settings, version: ApiVersion) -> Result<String, String> {
    for (option, value) in [("--shim-image", &settings.shim_image), ("--proxy-command", &settings.proxy_command)] {
        if !value.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c)) {
            return Err(format!("{option}: {value:?} has characters that no image and no path of a policy may have"));
        }
    }
    let collectors = KATIB_COLLECTORS.map(|name| format!("'{name}'")).join(", ");
    let names: &[(&str, &str)] = &[
        ("API_VERSION", version.as_str()),
        ("VERSION", env!("CARGO_PKG_VERSION")),
        ("IMAGE", &settings.shim_image),
        ("PULL_POLICY", settings.pull_policy.as_str()),
        ("DELIVERY", settings.delivery.as_str()),
        ("REQUESTS", &quantities(&settings.resources.requests)),
        ("LIMITS", &quantities(&settings.resources.limits)),
        ("PROXY_COMMAND", &settings.proxy_command),
        ("INJECTION", INJECTION_LABEL),
        ("LEGACY", LEGACY_INJECTION_LABEL),
        ("ENABLED", ENABLED),
        ("DISABLED", DISABLED),
        ("MODE", MODE_ANNOTATION),
        ("WAIT_FOR", WAIT_FOR_ANNOTATION),
        ("QUIT_ANNOTATION", QUIT_ANNOTATION),
        ("STATUS", STATUS_ANNOTATION),
        ("SHIM_LABEL", SHIM_LABEL),
        ("ISTIO_INJECT", ISTIO_INJECT),
        ("NATIVE_SIDECAR", NATIVE_SIDECAR_ANNOTATION),
        ("PROXY_CONFIG", PROXY_CONFIG_ANNOTATION),
        ("HOLD", HOLD_FIELD),
        ("STATUS_PORT", STATUS_PORT_ANNOTATION),
        ("DEFAULT_PORT", &DEFAULT_STATUS_PORT.to_string()),
        ("PROXY", PROXY_CONTAINER),
        ("SHIM", SHIM_CONTAINER),
        ("INSTALLER", INSTALL_CONTAINER),
        ("BINARY", SHIM_BINARY),
        ("BINARY_FOLDER", BINARY_FOLDER),
        ("STATE_FOLDER", STATE_FOLDER),
        ("VOLUME", VOLUME),
        ("ISTIO_DATA", ISTIO_DATA_VOLUME),
        ("UID", &SHIM_UID.to_string()),
        ("KATIB_TRIAL", KATIB_TRIAL_LABEL),
        ("KATIB_COLLECTORS", &format!("[{collectors}]")),
        ("ARGO_WORKFLOW", ARGO_WORKFLOW_LABEL),
        ("WATCH", WATCH),
        ("SUPERVISE", SUPERVISE),
        ("INSTALL", INSTALL),
        ("AWAIT", AWAIT),
        ("OUTLIVE", OUTLIVE),
        ("RESTART_POLICY", RESTART_POLICY),
        ("CONTAINER_POLICY", CONTAINER_POLICY),
        ("PROXY_OPTION", PROXY),
        ("STATUS_PORT_OPTION", STATUS_PORT),
        ("QUIT", QUIT),
        ("STATE", STATE),
        ("END_OF_OPTIONS", END_OF_OPTIONS),
    ];
    Ok(names.iter().fold(TEXT.to_owned(), |text, (name, value)| text.replace(&format!("%{name}%"), value)))
}

/// A map in CEL.
fn quantities(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, quantity)| format!("'{name}': '{quantity}'")).collect();
    format!("{{{}}}", pairs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERLAY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/overlays/policy/policy.yaml");
    const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/istio-aux/policy.yaml");

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
    fn what_would_end_a_string_is_refused() {
        let refused = manifests(&Settings::new("shim'+'"), ApiVersion::V1).unwrap_err();
        assert!(refused.starts_with("--shim-image: \"shim'+'\""), "{refused}");
    }

    #[test]
    fn what_is_deployed_is_what_the_command_prints() {
        for file in [OVERLAY, CHART] {
            if std::env::var_os("UPDATE_DEPLOY").is_some() {
                std::fs::write(file, by_default()).unwrap();
            }
            let written = std::fs::read_to_string(file).unwrap_or_default();
            assert!(written == by_default(), "{file} is older; next: UPDATE_DEPLOY=1 cargo test -p istio-aux policy");
        }
    }
}
