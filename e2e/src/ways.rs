//! The ways of installing istio-aux, as the documents tell them to an operator, and of removing it again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use contract::names::{ENABLED, HOLD_FIELD, INJECTION_LABEL};
use serde_json::json;

use crate::cluster::WAIT_TIMEOUT;
use crate::command::{printed, run};

/// A way of installing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `deploy/install`.
    Script,
    /// An overlay of kustomize, by its name.
    Overlay(&'static str),
    /// The chart, with these values.
    Chart(&'static [&'static str]),
    /// `istio-aux policy`, in the version that the server has.
    Policy,
    /// `istio-aux manifests`, and `istio-aux uninstall`.
    Command,
}

/// All ways, by the names that `way` and `make test-matrix` take.
pub const ALL: [(&str, Way); 9] = [
    ("script", Way::Script),
    ("self-signed", Way::Overlay("self-signed")),
    ("failure-ignore", Way::Overlay("failure-ignore")),
    ("cert-manager", Way::Overlay("cert-manager")),
    ("helm", Way::Chart(&[])),
    ("helm-cert-manager", Way::Chart(&["--set=certificate.from=cert-manager"])),
    ("helm-without-native-sidecars", Way::Chart(&["--set=nativeSidecars=disabled"])),
    ("policy", Way::Policy),
    ("command", Way::Command),
];

/// Where `make images` says that its images are. No registry has that name: they are loaded into the one-node cluster.
pub const LOADED_IMAGES: &str = "registry.invalid/istio-aux";

const BINARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/images/istio-aux");

/// What a command printed that is run in the folder `deploy`.
fn say(program: &str, words: &[&str]) -> String {
    printed(&run(program, words, ""))
}

/// Runs helm on the release's namespace. Returns what it printed.
#[expect(clippy::must_use_candidate, reason = "most of its commands are run for what they do")]
pub fn helm(words: &[&str]) -> String {
    say("helm", &[words, &["--namespace=istio-aux"]].concat())
}

impl Way {
    /// Installs, and waits until it is in force. Istio-aux is not there before.
    pub fn install(self) {
        self.bring_in();
        wait_until_effective();
    }

    fn bring_in(self) {
        match self {
            Self::Script => drop(say("env", &[&format!("REGISTRY={LOADED_IMAGES}"), "./install"])),
            Self::Overlay(name) => {
                let folder = format!("overlays/{name}");
                say("kubectl", &["apply", "--server-side", "-k", &folder]);
                say("kubectl", &["-n", "istio-aux", "rollout", "status", "deployment/istio-aux", "--timeout=150s"]);
            }
            Self::Chart(values) => {
                let install =
                    ["install", "istio-aux", "helm/istio-aux", "--create-namespace", "--wait", "--timeout=3m"];
                let registry = format!("--set=image.registry={LOADED_IMAGES}");
                helm(&[&install[..], &[&registry], values].concat());
            }
            Self::Policy => on_policy(&["apply", "--server-side"]),
            Self::Command => {
                say(BINARY, &["check", "--pre"]);
                let manifests = say(BINARY, &["manifests", "--registry", LOADED_IMAGES]);
                drop(printed(&run("kubectl", &["apply", "--server-side", "--filename=-"], &manifests)));
                say(BINARY, &["check", "--wait", "--timeout=3m"]);
            }
        }
    }

    /// Removes it, as the documents say.
    pub fn remove(self) {
        match self {
            Self::Script => drop(say("./install", &["remove"])),
            Self::Overlay(name) => {
                let folder = format!("overlays/{name}");
                say("kubectl", &["delete", "mutatingwebhookconfiguration", "istio-aux"]);
                say("kubectl", &["delete", "--ignore-not-found", "-k", &folder]);
            }
            Self::Chart(_) => {
                // Helm would delete it after the webhook.
                say("kubectl", &["delete", "mutatingwebhookconfiguration", "istio-aux"]);
                helm(&["uninstall", "istio-aux", "--wait", "--timeout=2m"]);
                // Which --create-namespace has made, and Helm never takes away.
                say("kubectl", &["delete", "namespace", "istio-aux"]);
            }
            Self::Policy => on_policy(&["delete"]),
            Self::Command => drop(say(BINARY, &["uninstall", "--yes", "--delete-namespace"])),
        }
    }
}

/// Waits until a pod that opts in by its label gets the hold: the API server hears of a policy, or reaches and trusts a webhook, a
/// moment after it is there.
pub fn wait_until_effective() {
    let metadata = json!({"name": "istio-aux-in-force", "labels": {INJECTION_LABEL: ENABLED}});
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string();
    let dry_run = ["create", "--namespace=default", "--dry-run=server", "--output=json", "--filename=-"];
    let began = Instant::now();
    loop {
        let made = run("kubectl", &dry_run, &pod);
        let text = String::from_utf8_lossy(&made.stdout);
        if made.status.success() && text.contains(HOLD_FIELD) {
            return;
        }
        let errors = String::from_utf8_lossy(&made.stderr);
        assert!(began.elapsed() < WAIT_TIMEOUT, "a pod that opts in does not get the hold: {errors}{text}");
        sleep(Duration::from_millis(200));
    }
}

/// Removes whatever is there, by whichever way it came.
pub fn remove_all() {
    helm(&["uninstall", "istio-aux", "--wait", "--ignore-not-found"]);
    say("./install", &["remove"]);
    on_policy(&["delete", "--ignore-not-found"]);
}

/// Runs kubectl on the policy profile, in the version that the server has.
fn on_policy(words: &[&str]) {
    let version = format!("--api-version={}", policy_version());
    let policy = say(BINARY, &["policy", &version]);
    drop(printed(&run("kubectl", &[words, &["--filename=-"]].concat(), &policy)));
}

/// In which version the server has policies.
#[must_use]
pub fn policy_version() -> &'static str {
    let kinds = run("kubectl", &["get", "--raw", "/apis/admissionregistration.k8s.io/v1"], "");
    let has_v1 = String::from_utf8_lossy(&kinds.stdout).contains("MutatingAdmissionPolicy");
    if has_v1 { "v1" } else { "v1beta1" }
}

/// Objects of ours that are still there, of whatever kind.
#[must_use]
pub fn left() -> Vec<String> {
    let kinds = say("kubectl", &["api-resources", "--verbs=list", "--output=name"]);
    let mut kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    kinds.sort_unstable();
    let all = kinds.join(",");
    let ours = "--selector=app.kubernetes.io/name=istio-aux";
    let listed = say("kubectl", &["get", &all, "--all-namespaces", ours, "--output=name"]);
    listed.lines().map(str::to_owned).collect()
}
