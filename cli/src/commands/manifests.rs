//! Runs `istio-aux manifests` and `istio-aux policy`, which print the two profiles as YAML.

use clap::Args;
use clap::builder::PossibleValue;
use inject::args::ShimArgs;

use super::CliResult;
use super::output::print;
use crate::{installation, policy};

/// Print the webhook profile: the objects of an installation with a self-signed certificate
#[derive(Debug, Args)]
#[command(
    long_about = "Print the webhook profile: the objects of an installation with a self-signed certificate.

The same as kubectl kustomize deploy/overlays/self-signed, for a namespace and images. Other options of an installation
are in the Helm chart: docs/install.md. Before Kubernetes 1.30, leave out the ValidatingAdmissionPolicies and their
bindings.",
    after_help = "examples:
  istio-aux manifests --registry=registry.example/istio-aux | kubectl apply --server-side -f -
  istio-aux manifests --registry=registry.example/istio-aux --namespace=mesh-tools > webhook.yaml"
)]
pub(super) struct ManifestsArgs {
    /// The namespace of the webhook
    #[arg(short, long, value_name = "NAME", default_value = "istio-aux", value_parser = namespace)]
    namespace: String,
    /// The registry, with its path, of the images webhook and shim; their tag is this program's version
    #[arg(long, value_name = "REGISTRY", required_unless_present_all = ["image", "shim_image"])]
    registry: Option<String>,
    /// The webhook's image, in place of the registry's
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// The shim's image, in place of the registry's
    #[arg(long, value_name = "IMAGE")]
    shim_image: Option<String>,
}

/// Print the policy profile: objects that have the API server itself do what the webhook does
#[derive(Debug, Args)]
#[command(
    long_about = "Print the policy profile: objects that have the API server itself do what the webhook does.

A MutatingAdmissionPolicy and its bindings, for Kubernetes 1.36 and later; for 1.34 and 1.35 with --api-version=v1beta1,
where the feature gate MutatingAdmissionPolicy is on. No component runs, and there is no certificate. docs/policy.md says
what a policy cannot do.",
    after_help = "examples:
  istio-aux policy --shim-image=registry.example/istio-aux/shim:0.1.0 | kubectl apply --server-side -f -
  istio-aux policy --shim-image=registry.example/istio-aux/shim:0.1.0 --delivery=image-volume > policy.yaml",
    // No registry has the default image, and without a component only pods would show it.
    mut_arg("shim_image", |image| image.default_value(None).required(true))
)]
pub(super) struct PolicyArgs {
    /// The version of the API that the server has
    #[arg(long, value_name = "VERSION", default_value = "v1", value_parser = api_versions())]
    api_version: String,
    #[command(flatten)]
    shim: ShimArgs,
}

pub(super) fn manifests(arguments: &ManifestsArgs) -> CliResult {
    let ManifestsArgs { namespace, registry, image: webhook, shim_image: shim } = arguments;
    let webhook = image(webhook.as_deref(), registry.as_deref(), "webhook");
    let shim = image(shim.as_deref(), registry.as_deref(), "shim");
    print(&installation::manifests(namespace, &webhook, &shim)?)?;
    Ok(true)
}

pub(super) fn policy(arguments: PolicyArgs) -> CliResult {
    print(&policy::manifests(&arguments.shim.settings(true), &arguments.api_version)?)?;
    Ok(true)
}

fn api_versions() -> [PossibleValue; 2] {
    [
        PossibleValue::new("v1").help("Kubernetes 1.36 and later"),
        PossibleValue::new("v1beta1").help("Kubernetes 1.34 and 1.35, where the feature gate and the version are on"),
    ]
}

/// Returns the image that was given, or that of the registry.
fn image(given: Option<&str>, registry: Option<&str>, name: &str) -> String {
    let registry = registry.unwrap_or_default().trim_end_matches('/');
    given.map_or_else(|| format!("{registry}/{name}:{}", installation::CLIENT_VERSION), str::to_owned)
}

/// Parses a DNS label, as names of namespaces are.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    let is_label = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let has_ends = !text.is_empty() && !text.starts_with('-') && !text.ends_with('-') && text.len() <= 63;
    if is_label && has_ends {
        Ok(text.to_owned())
    } else {
        Err("takes a name of a namespace, such as istio-aux".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_given_or_from_the_registry() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(image(None, Some("r.example/x/"), "shim"), format!("r.example/x/shim:{version}"));
        assert_eq!(image(Some("other/shim@sha256:0"), Some("r"), "shim"), "other/shim@sha256:0");
    }

    #[test]
    fn invalid_namespace_name_is_rejected() {
        for text in ["", "-a", "a-", "A", "a.b", "a b"] {
            assert!(namespace(text).is_err(), "{text}");
        }
        assert_eq!(namespace("mesh-tools-2").as_deref(), Ok("mesh-tools-2"));
    }
}
