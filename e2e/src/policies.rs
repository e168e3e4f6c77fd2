//! The policy profile under another name, for namespaces of its own, beside the installation.

use contract::names::{PROXY_CONFIG_ANNOTATION, SHIM_CONTAINER};
use serde_json::{Value, json};

use crate::Namespace;
use crate::cluster::Label;
use crate::command::{printed, run_offline};
use crate::install_methods::{BINARY, policy_version, shim_image};
use crate::kubectl::Applied;

/// Returns the label that opts a namespace into the policies of this name.
pub const fn by_policy(name: &'static str) -> Label {
    ("e2e.istio-aux.io/policy", name)
}

/// Installs the profile's policies with these options of `istio-aux policy`, and one binding each to the namespaces of
/// [`by_policy`].
#[must_use]
pub fn install_policies(name: &'static str, options: &[&str]) -> Applied {
    let version = format!("--api-version={}", policy_version());
    let text = printed(&run_offline(BINARY, &[&["policy", &version, &shim_image()], options].concat()));
    let mut objects: Vec<Value> = serde_saphyr::from_str_multiple(&text).expect("manifests are YAML");
    // What keeps others from the annotation is the same object as the installation's.
    objects.retain(|object| !object["kind"].as_str().is_some_and(|kind| kind.starts_with("Validating")));
    objects.retain(|object| object["kind"] != "MutatingAdmissionPolicyBinding" || is_for_namespaces(object));
    let renamed = |old: &Value| json!(format!("{name}-{}", old.as_str().unwrap_or_default()));
    for object in &mut objects {
        object["metadata"]["name"] = renamed(&object["metadata"]["name"]);
        if object["kind"] == "MutatingAdmissionPolicyBinding" {
            object["spec"]["policyName"] = renamed(&object["spec"]["policyName"]);
            let (label, value) = by_policy(name);
            object["spec"]["matchResources"]["namespaceSelector"] = json!({"matchLabels": {label: value}});
        }
    }
    Applied::new(&objects)
}

fn is_for_namespaces(binding: &Value) -> bool {
    let name = binding["metadata"]["name"].as_str().unwrap_or_default();
    name.ends_with("-ended") || (name.ends_with("-namespace") && !name.ends_with("-legacy-namespace"))
}

/// Waits until the policies are effective: a pod of this kind then gets what they add.
pub async fn wait_until_effective(ns: &Namespace, base: &Value) {
    for (policy, added) in [("Never", SHIM_CONTAINER), ("Always", PROXY_CONFIG_ANNOTATION)] {
        let mut pod = base.clone();
        pod["spec"]["restartPolicy"] = json!(policy);
        ns.until("the policies to be effective", async || {
            let made = ns.try_dry_run(pod.clone()).await.ok()?;
            made.to_string().contains(added).then_some(())
        })
        .await;
    }
}
