//! The policy profile under another name, for namespaces of its own, beside whatever is installed.

use contract::names::{PROXY_CONFIG_ANNOTATION, SHIM_CONTAINER};
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::Namespace;
use crate::cluster::Label;
use crate::command::{printed, run};
use crate::ways::policy_version;

const BINARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/images/istio-aux");

/// Opts a namespace into the policies of this name.
#[must_use]
pub const fn by_policy(name: &'static str) -> Label {
    ("e2e.istio-aux.io/policy", name)
}

/// The profile's policies, with one binding each, to the namespaces of [`by_policy`]. Removed when it is dropped.
#[derive(Debug)]
pub struct InstalledPolicies(String);

impl InstalledPolicies {
    /// Installs the policies with these options of `istio-aux policy`.
    #[must_use]
    pub fn new(name: &'static str, options: &[&str]) -> Self {
        let version = format!("--api-version={}", policy_version());
        let text = printed(&run(BINARY, &[&["policy", &version], options].concat(), ""));
        let mut objects: Vec<Value> = serde_saphyr::from_str_multiple(&text).expect("manifests are YAML");
        objects.retain(|object| object["kind"] != "MutatingAdmissionPolicyBinding" || is_for_namespaces(object));
        let renamed = |old: &Value| json!(format!("{name}-{}", old.as_str().unwrap_or_default()));
        for object in &mut objects {
            object["metadata"]["name"] = renamed(&object["metadata"]["name"]);
            if object["kind"] == "MutatingAdmissionPolicyBinding" {
                object["spec"]["policyName"] = renamed(&object["spec"]["policyName"]);
                let (label, value) = by_policy(name);
                let selector = json!({"matchLabels": {label: value}});
                object["spec"]["matchResources"]["namespaceSelector"] = selector;
            }
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let _ = printed(&run("kubectl", &["apply", "--server-side", "-f", "-"], &list));
        Self(list)
    }
}

impl Drop for InstalledPolicies {
    fn drop(&mut self) {
        let deleted = run("kubectl", &["delete", "--ignore-not-found", "-f", "-"], &self.0);
        if !deleted.status.success() {
            eprintln!("the policies stay: {}", String::from_utf8_lossy(&deleted.stderr));
        }
    }
}

fn is_for_namespaces(binding: &Value) -> bool {
    let name = binding["metadata"]["name"].as_str().unwrap_or_default();
    name.ends_with("-namespace") && !name.ends_with("-legacy-namespace")
}

/// Waits until the policies are in force: a pod of this kind then has what they add.
pub async fn until_in_force(ns: &Namespace, base: &Value) {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for (policy, added) in [("Never", SHIM_CONTAINER), ("Always", PROXY_CONFIG_ANNOTATION)] {
        let mut pod = base.clone();
        pod["spec"]["restartPolicy"] = json!(policy);
        ns.until("the policies to be in force", async || {
            let made = ns.try_create(pod.clone(), &dry_run).await.ok()?;
            serde_json::to_string(&made).ok()?.contains(added).then_some(())
        })
        .await;
    }
}
