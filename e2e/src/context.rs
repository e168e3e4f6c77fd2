//! Decides which cluster the tests may use: the one-node cluster of this machine, or the one that `E2E_CONTEXT` names.
//! The tests create, change and delete objects, so a cluster that a kubeconfig happens to name is refused.

use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;

use kube::config::{Cluster, Kubeconfig, KubeconfigError};
use thiserror::Error;

/// The directory of the one-node cluster's state, set by `hack/cluster/cluster run`.
const ONE_NODE_CLUSTER: &str = "ONE_NODE_CLUSTER";
/// Names the context of another cluster that the tests may use.
const E2E_CONTEXT: &str = "E2E_CONTEXT";

/// A reason to leave a cluster alone.
#[derive(Debug, Error)]
pub enum Refusal {
    /// There is no kubeconfig to take a context from.
    #[error("no cluster: {0}; next: make test-cluster, or set KUBECONFIG and {E2E_CONTEXT}")]
    NoKubeconfig(#[from] KubeconfigError),
    /// The context is neither the one-node cluster's nor named.
    #[error(
        "these tests change the cluster that they run on, and context {0:?} is not the one-node cluster's; \
         next: hack/cluster/cluster run COMMAND, or {E2E_CONTEXT}={0} to use that cluster"
    )]
    NotNamed(String),
    /// Another context is named.
    #[error(
        "{E2E_CONTEXT} is {named:?}, and the current context is {current:?}; next: kubectl config use-context {named}"
    )]
    AnotherNamed {
        /// The value of `E2E_CONTEXT`.
        named: String,
        /// The kubeconfig's current context.
        current: String,
    },
}

/// Returns the kubeconfig of the cluster that the tests may use.
pub fn kubeconfig() -> Result<Kubeconfig, Refusal> {
    let config = Kubeconfig::read()?;
    let one_node = env::var_os(ONE_NODE_CLUSTER).map(|state| PathBuf::from(state).join("kubeconfig"));
    let one_node = one_node.map(Kubeconfig::read_from).transpose()?;
    decide(&config, one_node.as_ref(), env::var(E2E_CONTEXT).ok())?;
    Ok(config)
}

/// Panics unless the tests may use the cluster of `KUBECONFIG`. Reads the kubeconfig once for each process.
pub fn require_allowed() {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    if let Some(refusal) = REFUSAL.get_or_init(|| kubeconfig().err().map(|refusal| refusal.to_string())) {
        panic!("{refusal}");
    }
}

fn decide(config: &Kubeconfig, one_node: Option<&Kubeconfig>, named: Option<String>) -> Result<(), Refusal> {
    let current = config.current_context.clone().unwrap_or_default();
    let identity = identity(config);
    if identity.is_some() && identity == one_node.and_then(self::identity) {
        return Ok(());
    }
    match named {
        Some(named) if named == current && !current.is_empty() => Ok(()),
        Some(named) => Err(Refusal::AnotherNamed { named, current }),
        None => Err(Refusal::NotNamed(current)),
    }
}

/// Returns what identifies the current context's cluster: the server's address and the CA that its certificate is of.
fn identity(config: &Kubeconfig) -> Option<[Option<&String>; 4]> {
    let current = config.current_context.as_ref()?;
    let context = config.contexts.iter().find(|context| context.name == *current)?.context.as_ref()?;
    let named = config.clusters.iter().find(|cluster| cluster.name == context.cluster)?;
    let Cluster { server, certificate_authority, certificate_authority_data, proxy_url, .. } =
        named.cluster.as_ref()?;
    let has_authority = certificate_authority.is_some() || certificate_authority_data.is_some();
    (server.is_some() && has_authority).then_some([
        server.as_ref(),
        certificate_authority.as_ref(),
        certificate_authority_data.as_ref(),
        proxy_url.as_ref(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig_of(server: &str, authority: &str) -> Kubeconfig {
        let text = serde_json::json!({
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "there", "user": "me"}}],
            "clusters": [{"name": "there", "cluster": {"server": server, "certificate-authority-data": authority}}],
        });
        Kubeconfig::from_yaml(&text.to_string()).expect("it is a kubeconfig")
    }

    #[test]
    fn context_is_allowed_by_identity_or_exact_name() {
        let local = "https://127.0.0.1:6443";
        let one_node = kubeconfig_of(local, "one");
        let cases = [
            ("the one-node cluster", kubeconfig_of(local, "one"), Some(&one_node), None, true),
            ("another CA at the same address", kubeconfig_of(local, "other"), Some(&one_node), None, false),
            ("another address", kubeconfig_of("https://127.0.0.1:6444", "one"), Some(&one_node), None, false),
            ("outside of `cluster run`", kubeconfig_of(local, "one"), None, None, false),
            ("its name", kubeconfig_of(local, "one"), None, Some("here"), true),
            ("another name", kubeconfig_of(local, "one"), None, Some("her"), false),
            ("no context, and no name", Kubeconfig::default(), None, Some(""), false),
        ];
        for (case, config, one_node, named, expected) in cases {
            assert_eq!(decide(&config, one_node, named.map(str::to_owned)).is_ok(), expected, "{case}");
        }
    }
}
