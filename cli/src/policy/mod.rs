//! Renders the policy profile: the decision as `MutatingAdmissionPolicy` objects (KEP-3962), from the chart's files with the
//! operator's settings.

use anyhow::{Result, bail};
use inject::{Settings, ShimUser};

const TEXT: &str = include_str!("../../../deploy/helm/istio-aux/policy/policy.yaml");
const ENDED: &str = include_str!("../../../deploy/helm/istio-aux/policy/ended.yaml");
/// Keeps others from writing the annotation: the same object as in the webhook profile.
const GUARD: &str = include_str!("../../../deploy/helm/istio-aux/policy/guard.yaml");
/// The user of istio-proxy, in CEL.
const PROXYS_USER: &str = include_str!("../../../deploy/helm/istio-aux/policy/proxys-user.cel");

/// Returns the objects in YAML. `Err` for a setting that would not stay a string of CEL.
pub(crate) fn manifests(settings: &Settings, api_version: &str) -> Result<String> {
    if settings.prefers_status {
        bail!("--default-mode=status: a policy has no such setting; next: the annotation istio-aux.io/mode of pods");
    }
    for (option, value) in [("--shim-image", &settings.shim_image), ("--proxy-command", &settings.proxy_command)] {
        if !value.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c)) {
            bail!("{option}: {value:?} has characters that no image and no path of a policy may have");
        }
    }
    let settings: &[(&str, &str)] = &[
        ("API_VERSION", api_version),
        ("VERSION", env!("CARGO_PKG_VERSION")),
        ("IMAGE", &settings.shim_image),
        ("PULL_POLICY", settings.pull_policy.as_str()),
        ("PULL_SECRETS", &list(&settings.pull_secrets)),
        ("HOLD", settings.hold.as_str()),
        ("DELIVERY", settings.delivery.as_str()),
        ("REQUESTS", &quantities(&settings.resources.requests)),
        ("LIMITS", &quantities(&settings.resources.limits)),
        ("USER", &user(settings.user)),
        ("PROXY_COMMAND", &settings.proxy_command),
    ];
    let [first, second] = by_kind();
    Ok(fill(&[&first, &second, ENDED, GUARD].join("---\n"), settings))
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

/// Renders a list in CEL.
fn list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    format!("[{}]", words.join(", "))
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
        ShimUser::Proxy => format!("{} ", PROXYS_USER.trim_end()),
        ShimUser::Unset => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inject::args::default_settings;

    #[test]
    fn every_name_is_filled_in() {
        let text = manifests(&default_settings(), "v1").unwrap();
        let left: Vec<&str> = text.split('%').skip(1).step_by(2).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn value_that_ends_a_string_is_rejected() {
        let refused = manifests(&Settings::new("shim'+'"), "v1").unwrap_err().to_string();
        assert!(refused.starts_with("--shim-image: \"shim'+'\""), "{refused}");
    }

    #[test]
    fn setting_that_a_policy_lacks_is_rejected() {
        let settings = Settings { prefers_status: true, ..default_settings() };
        let refused = manifests(&settings, "v1").unwrap_err().to_string();
        assert!(refused.starts_with("--default-mode=status: a policy has no such setting"), "{refused}");
    }
}
