//! The cluster that the tests run on: its clients, the labels that its namespaces take, and its daemons.

use contract::names::{ENABLED, INJECTION_LABEL, LEGACY_INJECTION_LABEL, NODE, PROXY_LABEL};
use contract::version::Version;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions};
use kube::{Client, Config};

use serde_json::Value;

use crate::Namespace;
use crate::command::{printed, run};
use crate::context;
use crate::kubectl::kubectl;

/// A namespace label.
pub type Label = (&'static str, &'static str);

/// Lets Istio inject into a namespace.
pub const MESH: Label = ("istio-injection", "enabled");
/// Opts a namespace in.
pub const OPT_IN: Label = (INJECTION_LABEL, ENABLED);
/// Gives a namespace's pods node proxies.
pub const NODE_PROXY: Label = (PROXY_LABEL, NODE);
/// Lets Pod Security reject pods that do not meet its strictest standard.
pub const RESTRICTED: Label = ("pod-security.kubernetes.io/enforce", "restricted");
/// Opts a namespace in, as earlier installations did.
pub const LEGACY_OPT_IN: Label = (LEGACY_INJECTION_LABEL, ENABLED);

/// The names of the webhook configurations, in the order in which they are called.
pub const CONFIGURATIONS: [&str; 2] = ["istio-aux", "zz-istio-aux"];

/// Returns what the shim's last words have for an exit code: `?` on a kernel that tells none of other containers (before 6.15,
/// docs/limitations.md).
pub fn told_code(code: u8) -> String {
    let kernel = kubectl(&["get", "nodes", "--output=jsonpath={.items[0].status.nodeInfo.kernelVersion}"]);
    let kernel = Version::parse(&kernel).expect("a kernel has a version");
    if kernel.reports_exit_codes() { code.to_string() } else { "?".to_owned() }
}

/// Returns a client for the cluster that the tests may use. Panics with the next step where there is none.
pub async fn client() -> Client {
    Client::try_from(config().await).expect("a client is made of it")
}

/// Returns a client that does everything as a service account.
pub async fn client_as(namespace: &str, account: &str) -> Client {
    let mut config = config().await;
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:{account}"));
    Client::try_from(config).expect("a client is made of it")
}

/// Returns a client with a token of a service account.
pub async fn client_with_token_of(namespace: &str, account: &str) -> Client {
    let accounts: Api<ServiceAccount> = Api::namespaced(client().await, namespace);
    let request = accounts.create_token_request(account, &PostParams::default(), &TokenRequest::default()).await;
    let token = request.expect("the account has a token").status.expect("it is there").token;
    let mut config = config().await;
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    Client::try_from(config).expect("a client is made of it")
}

async fn config() -> Config {
    let kubeconfig = context::kubeconfig().unwrap_or_else(|refusal| panic!("{refusal}"));
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.expect("the kubeconfig's current context is whole")
}

/// Waits until istiod has an object of a kind of Istio's in a namespace, with this in its specification.
pub async fn until_istiod_has(ns: &Namespace, kind: &str, content: &Value) {
    let content = content.to_string();
    let request = ["exec", "--namespace=istio-system", "deployment/istiod", "--", "pilot-discovery", "request"];
    let is_it = |object: &Value| {
        let (namespace, spec) = (&object["metadata"]["namespace"], object["spec"].to_string());
        object["kind"] == kind && namespace == ns.name() && spec.contains(&content)
    };
    let has = async || {
        let all = kubectl(&[&request[..], &["GET", "debug/configz"]].concat());
        let all: Value = serde_json::from_str(&all).expect("it is JSON");
        all.as_array().is_some_and(|all| all.iter().any(is_it)).then_some(())
    };
    ns.until(&format!("istiod to have the {kind}"), has).await;
}

/// Restarts a daemon of the one-node cluster: the kubelet, containerd or the API server.
pub fn restart(daemon: &str) {
    restart_around(daemon, &[]);
}

/// Restarts containerd, or another without a command, and runs the command while it is away.
pub fn restart_around(daemon: &str, command: &[&str]) {
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/cluster/cluster");
    printed(&run(cluster, &[&["restart", daemon], command].concat(), ""));
}
