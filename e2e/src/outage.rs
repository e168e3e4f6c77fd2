//! Outages of the webhook: no replica runs, replicas swallow the API server's packets, they answer by errors, or it does not trust
//! them. And of istiod.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cluster::CONFIGURATIONS;
use crate::command::{printed, run};
use crate::harness::undo;
use crate::install_methods::upgrade;
use crate::kubectl::{apply, kubectl, wait_for_rollout};
use crate::node::kill_containers;

pub(crate) const NAMESPACE: &str = "--namespace=istio-aux";
const SELECTOR: &str = "--selector=app.kubernetes.io/name=istio-aux";

/// Keeps a Deployment scaled down until it is dropped.
pub struct NoReplica {
    namespace: &'static str,
    deployment: &'static str,
    replicas: String,
}

impl NoReplica {
    /// Ends all replicas of the webhook.
    #[must_use]
    pub fn of_webhook() -> Self {
        Self::begin("istio-aux", "deployment/istio-aux", "webhook")
    }

    /// Ends istiod.
    #[must_use]
    pub fn of_istiod() -> Self {
        Self::begin("istio-system", "deployment/istiod", "discovery")
    }

    fn begin(namespace: &'static str, deployment: &'static str, container: &str) -> Self {
        let get = |words: &[&str]| kubectl(&[&["-n", namespace, "get"], words].concat());
        let replicas = get(&[deployment, "--output=jsonpath={.spec.replicas}"]);
        let labels: BTreeMap<String, String> =
            serde_json::from_str(&get(&[deployment, "--output=jsonpath={.spec.selector.matchLabels}"]))
                .expect("they are labels");
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods = get(&["pods", "--output=name", "--selector", &labels.join(",")]);
        let wait = |condition: &str| {
            let words = ["-n", namespace, "wait", "--timeout=2m", condition];
            kubectl(&words.into_iter().chain(pods.lines()).collect::<Vec<_>>());
        };
        let this = Self { namespace, deployment, replicas };
        scale(namespace, deployment, "0");
        // They drain for a while unless they are killed, and the kubelet would start one again that is not to be deleted yet.
        wait("--for=jsonpath={.metadata.deletionTimestamp}");
        kill_containers(namespace, container);
        wait("--for=delete");
        this
    }
}

impl Drop for NoReplica {
    fn drop(&mut self) {
        undo(|| {
            scale(self.namespace, self.deployment, &self.replicas);
            wait_for_rollout(self.namespace, self.deployment);
        });
    }
}

fn scale(namespace: &str, deployment: &str, replicas: &str) {
    kubectl(&["-n", namespace, "scale", deployment, &format!("--replicas={replicas}")]);
}

/// Has failures of the webhook ignored until it is dropped, as docs/outages.md says for an installation by Helm.
pub struct IgnoredFailures(());

impl IgnoredFailures {
    /// Sets the chart's `failurePolicy`.
    #[must_use]
    pub fn begin() -> Self {
        let this = Self(());
        upgrade(&["--set=failurePolicy=Ignore"]);
        this
    }
}

impl Drop for IgnoredFailures {
    fn drop(&mut self) {
        undo(|| upgrade(&["--set=failurePolicy=Fail"]));
    }
}

/// Keeps webhook configurations away until it is dropped, when `helm upgrade` creates them.
pub struct WithoutConfigurations(());

impl WithoutConfigurations {
    /// Deletes them.
    #[must_use]
    pub fn begin(names: &[&str]) -> Self {
        let this = Self(());
        kubectl(&[&["delete", "mutatingwebhookconfiguration"], names].concat());
        this
    }
}

impl Drop for WithoutConfigurations {
    fn drop(&mut self) {
        undo(|| upgrade(&[]));
    }
}

/// Drops the API server's packets to some replicas until it is dropped. Their probes are answered.
pub struct SilentReplicas {
    programs: Vec<&'static str>,
}

/// The chain of the rules that drop them. `make cluster-down` removes it, too.
const SILENT_CHAIN: &str = "ISTIO-AUX-SILENT";

impl SilentReplicas {
    /// Silences the replicas of these numbers. All of them must run, and none drain.
    #[must_use]
    pub fn begin(numbers: &[usize]) -> Self {
        let addresses = kubectl(&[NAMESPACE, "get", "pods", SELECTOR, "--output=jsonpath={.items[*].status.podIP}"]);
        let addresses: Vec<&str> = addresses.split(' ').collect();
        let mut silent = Self { programs: Vec::new() };
        for address in numbers.iter().map(|number| addresses[*number]) {
            let program = if address.contains(':') { "ip6tables" } else { "iptables" };
            if !silent.programs.contains(&program) {
                // A run that was killed may have left it.
                remove_chain(program);
                silent.programs.push(program);
                printed(&run(program, &["-w", "-N", SILENT_CHAIN], ""));
                printed(&run(program, &["-w", "-I", "OUTPUT", "-j", SILENT_CHAIN], ""));
            }
            let rule = ["-w", "-A", SILENT_CHAIN, "-p", "tcp", "-d", address, "--dport", "8443", "-j", "DROP"];
            printed(&run(program, &rule, ""));
        }
        silent
    }
}

impl Drop for SilentReplicas {
    fn drop(&mut self) {
        let left: Vec<_> = self.programs.iter().filter(|program| !remove_chain(program)).collect();
        assert!(left.is_empty() || std::thread::panicking(), "rules are left: {left:?}");
    }
}

/// Removes the chain and the rule that jumps to it. Returns true if both were there.
fn remove_chain(program: &str) -> bool {
    let steps = [&["-D", "OUTPUT", "-j", SILENT_CHAIN][..], &["-F", SILENT_CHAIN], &["-X", SILENT_CHAIN]];
    let done = steps.map(|words| run(program, &[&["-w"], words].concat(), "").status.success());
    done.into_iter().all(|is_done| is_done)
}

/// Changes how the API server calls each webhook.
fn change_client_configs(mut change: impl FnMut(&mut Value)) {
    for name in CONFIGURATIONS {
        let words = ["get", "mutatingwebhookconfiguration", name, "--output=json"];
        let mut configuration: Value = serde_json::from_str(&kubectl(&words)).expect("it is JSON");
        for webhook in configuration["webhooks"].as_array_mut().expect("it has webhooks") {
            change(&mut webhook["clientConfig"]);
        }
        printed(&run("kubectl", &["replace", "--filename=-"], &configuration.to_string()));
    }
}

/// Has the webhook answer each review with an error until it is dropped, as it does when a decision panics.
pub struct FailingWebhook(());

/// Comes before each path, which the webhook then does not know.
const UNKNOWN: &str = "/unknown";

impl FailingWebhook {
    /// Has the API server call paths that the webhook does not know.
    #[must_use]
    pub fn begin() -> Self {
        let this = Self(());
        change_paths(|path| format!("{UNKNOWN}{path}"));
        this
    }
}

impl Drop for FailingWebhook {
    fn drop(&mut self) {
        undo(|| change_paths(|path| path.trim_start_matches(UNKNOWN).to_owned()));
    }
}

fn change_paths(change: impl Fn(&str) -> String) {
    change_client_configs(|client_config| {
        let path = &mut client_config["service"]["path"];
        *path = change(path.as_str().expect("it is a path")).into();
    });
}

/// Has the API server trust another CA until it is dropped. The webhook cannot restore it meanwhile.
pub struct UntrustedWebhook {
    binding: Value,
}

impl UntrustedWebhook {
    /// Takes the webhook's right, and replaces the CA.
    #[must_use]
    pub fn begin() -> Self {
        let words = ["get", "clusterrolebinding", "istio-aux", "--output=json"];
        let binding: Value = serde_json::from_str(&kubectl(&words)).expect("it is JSON");
        let this = Self { binding };
        kubectl(&["delete", "clusterrolebinding", "istio-aux"]);
        let other = json!(other_ca());
        change_client_configs(|client_config| client_config["caBundle"] = other.clone());
        this
    }
}

/// Returns true if the API server trusts the webhook for each of its calls. A call that it does not trust yet fails.
#[must_use]
pub fn is_trusted() -> bool {
    let other = other_ca();
    let configuration = |name| kubectl(&["get", "mutatingwebhookconfiguration", name, "--output=json"]);
    CONFIGURATIONS.into_iter().map(configuration).all(|text| !text.contains(&other))
}

/// Returns the cluster's own CA, which the webhook's certificate is not of.
fn other_ca() -> String {
    let ca = "--output=jsonpath={.clusters[0].cluster.certificate-authority-data}";
    kubectl(&["config", "view", "--raw", ca])
}

impl Drop for UntrustedWebhook {
    fn drop(&mut self) {
        for field in ["creationTimestamp", "managedFields", "resourceVersion", "uid"] {
            self.binding["metadata"].as_object_mut().expect("metadata is an object").remove(field);
        }
        undo(|| apply(std::slice::from_ref(&self.binding)));
    }
}
