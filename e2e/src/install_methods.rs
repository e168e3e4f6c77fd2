//! The methods of installing istio-aux that docs/install.md describes, and of removing it again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use contract::names::{ENABLED, HOLD_FIELD, INJECTION_LABEL};
use serde_json::json;

use crate::cluster::CONFIGURATIONS;
use crate::command::{printed, run};
use crate::kubectl::{kubectl, wait_for_rollout};
use crate::namespace::WAIT_TIMEOUT;

/// A method of installing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallMethod {
    /// The overlay `self-signed` of kustomize.
    Overlay,
    /// The chart, with these values.
    Chart(&'static [&'static str]),
    /// `istio-aux policy`, in the version that the server has.
    Policy,
    /// `istio-aux manifests`.
    Command,
}

/// All methods, by the names that `install-method` and `make test-matrix` take.
pub const ALL: [(&str, InstallMethod); 6] = [
    ("self-signed", InstallMethod::Overlay),
    ("helm", InstallMethod::Chart(&[])),
    ("cert-manager", InstallMethod::Chart(&["--set=certificate.from=cert-manager"])),
    ("helm-without-native-sidecars", InstallMethod::Chart(&["--set=nativeSidecars=disabled"])),
    ("policy", InstallMethod::Policy),
    ("command", InstallMethod::Command),
];

/// The registry in the names of `make images`' images. It does not exist: they are loaded into the one-node cluster.
pub const LOADED_IMAGES: &str = "registry.invalid/istio-aux";

/// The command line that is in the image.
pub const BINARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/images/istio-aux");

/// Returns the option for the shim's image of `make images`.
pub fn shim_image() -> String {
    format!("--shim-image={LOADED_IMAGES}/shim:{}", env!("CARGO_PKG_VERSION"))
}

/// Runs a command in the directory `deploy`, and returns what it printed.
fn say(program: &str, words: &[&str]) -> String {
    printed(&run(program, words, ""))
}

/// Runs helm on the release's namespace. Returns what it printed.
pub fn helm(words: &[&str]) -> String {
    say("helm", &[words, &["--namespace=istio-aux"]].concat())
}

/// Installs the chart again, with the values that were set and these.
pub fn upgrade(values: &[&str]) {
    helm(&[&["upgrade", "istio-aux", "helm/istio-aux", "--reset-then-reuse-values", "--wait"], values].concat());
}

impl InstallMethod {
    /// Installs, where istio-aux is not installed, and waits until it is effective.
    pub fn install(self) {
        self.apply();
        wait_until_effective();
    }

    fn apply(self) {
        match self {
            Self::Overlay => {
                kubectl(&["apply", "--server-side", "-k", "overlays/self-signed"]);
                wait_for_rollout("istio-aux", "deployment/istio-aux");
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
                printed(&run("kubectl", &["apply", "--server-side", "--filename=-"], &manifests));
                say(BINARY, &["check", "--wait", "--timeout=3m"]);
            }
        }
    }

    /// Removes it, as the documents say.
    pub fn remove(self) {
        say(BINARY, &["uninstall", "--yes"]);
        if let Self::Chart(_) = self {
            helm(&["uninstall", "istio-aux", "--wait", "--timeout=2m"]);
        }
        kubectl(&["delete", "namespace", "istio-aux", "--ignore-not-found"]);
    }
}

/// Deletes both webhook configurations.
pub fn delete_configurations() {
    let delete = ["delete", "--ignore-not-found", "mutatingwebhookconfiguration"];
    kubectl(&[&delete[..], &CONFIGURATIONS].concat());
}

/// Waits until a pod that opts in by its label gets the hold: the API server reads a policy, or reaches and trusts a webhook, a
/// moment after it is created.
pub fn wait_until_effective() {
    let metadata = json!({"name": "istio-aux-probe", "labels": {INJECTION_LABEL: ENABLED}});
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

/// Removes istio-aux, by whichever method it was installed.
pub fn remove_all() {
    delete_configurations();
    helm(&["uninstall", "istio-aux", "--wait", "--ignore-not-found"]);
    kubectl(&["delete", "--ignore-not-found", "-k", "overlays/self-signed"]);
    on_policy(&["delete", "--ignore-not-found"]);
}

/// Runs kubectl on the policy profile, in the version that the server has.
fn on_policy(words: &[&str]) {
    let version = format!("--api-version={}", policy_version());
    let policy = say(BINARY, &["policy", &version, &shim_image()]);
    printed(&run("kubectl", &[words, &["--filename=-"]].concat(), &policy));
}

/// Returns the version in which the server has policies.
pub fn policy_version() -> &'static str {
    let kinds = run("kubectl", &["get", "--raw", "/apis/admissionregistration.k8s.io/v1"], "");
    let has_v1 = String::from_utf8_lossy(&kinds.stdout).contains("MutatingAdmissionPolicy");
    if has_v1 { "v1" } else { "v1beta1" }
}

/// Returns the objects of istio-aux, of every kind.
pub fn leftover_objects() -> Vec<String> {
    let kinds = kubectl(&["api-resources", "--verbs=list", "--output=name"]);
    let mut kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    kinds.sort_unstable();
    let all = kinds.join(",");
    let ours = "--selector=app.kubernetes.io/name=istio-aux";
    let listed = kubectl(&["get", &all, "--all-namespaces", ours, "--output=name"]);
    listed.lines().map(str::to_owned).collect()
}
