//! The objects that a tenant's namespace should have.

use std::collections::BTreeMap;

use contract::kind::{POD_DEFAULTS, ROLE_BINDINGS};
use contract::names::{ACCESS_PIPELINES_LABEL, INSTALLATION_LABEL, MANAGED_BY_LABEL, TENANCY_MANAGER};
use serde_json::{Value, json};

use super::pipelines_token::{mount, variable, volume};

/// The name of the `RoleBinding`.
pub const ROLE_BINDING_NAME: &str = "istio-aux-pipelines";
/// The volume that Kubeflow's documentation has in this `PodDefault`.
const POD_DEFAULT_VOLUME: &str = "volume-kf-pipeline-token";

/// Returns the `RoleBinding` that gives accounts of a namespace a `ClusterRole` in it.
#[must_use]
pub fn role_binding(namespace: &str, role: &str, accounts: &[String]) -> Value {
    let subject = |account: &String| json!({"kind": "ServiceAccount", "name": account, "namespace": namespace});
    let subjects: Vec<Value> = accounts.iter().map(subject).collect();
    json!({
        "apiVersion": ROLE_BINDINGS.api_version(), "kind": ROLE_BINDINGS.name,
        "metadata": {"name": ROLE_BINDING_NAME, "namespace": namespace},
        "roleRef": {"apiGroup": ROLE_BINDINGS.group, "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    })
}

/// Returns the `PodDefault` of Kubeflow's documentation, which Kubeflow's user interface offers for notebooks.
#[must_use]
pub fn pod_default(namespace: &str) -> Value {
    json!({
        "apiVersion": POD_DEFAULTS.api_version(), "kind": POD_DEFAULTS.name,
        "metadata": {"name": ACCESS_PIPELINES_LABEL, "namespace": namespace},
        "spec": {
            "desc": "Allow access to Kubeflow Pipelines",
            "selector": {"matchLabels": {ACCESS_PIPELINES_LABEL: "true"}},
            "env": [variable()],
            "volumeMounts": [mount(POD_DEFAULT_VOLUME)],
            "volumes": [volume(POD_DEFAULT_VOLUME)],
        },
    })
}

/// Returns the object as the controller of an installation applies it: with labels by which people find it.
#[must_use]
pub fn labelled(mut object: Value, installation: &str) -> Value {
    object["metadata"]["labels"] = json!(labels(installation));
    object
}

/// Returns the labels of what the controller of an installation makes.
#[must_use]
pub fn labels(installation: &str) -> BTreeMap<String, String> {
    let labels = [(MANAGED_BY_LABEL, TENANCY_MANAGER), (INSTALLATION_LABEL, installation)];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Returns the installation whose controller has applied the object; `None` if none has. Labels alone do not say that: people write
/// them by hand.
#[must_use]
pub fn installation_of(object: &Value) -> Option<&str> {
    let managers = object["metadata"]["managedFields"].as_array()?;
    let is_applied = |entry: &Value| entry["manager"] == TENANCY_MANAGER && entry["operation"] == "Apply";
    managers.iter().any(is_applied).then(|| object["metadata"]["labels"][INSTALLATION_LABEL].as_str()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_as_kubeflow_documents_them() {
        let accounts = ["default".to_owned(), "trainer".to_owned()];
        let objects = [role_binding("team", "some-role", &accounts), labelled(pod_default("team"), "istio-aux")];
        let yaml: Vec<String> = objects.iter().map(|object| serde_saphyr::to_string(object).unwrap()).collect();
        insta::assert_snapshot!(yaml.join("---\n"));
    }

    #[test]
    fn object_belongs_to_the_installation_that_applied_it() {
        let by = |manager: &str, operation: &str| {
            let mut object = labelled(pod_default("team"), "here");
            object["metadata"]["managedFields"] = json!([{"manager": manager, "operation": operation}]);
            object
        };
        assert_eq!(installation_of(&by(TENANCY_MANAGER, "Apply")), Some("here"));
        assert_eq!(installation_of(&by(TENANCY_MANAGER, "Update")), None);
        assert_eq!(installation_of(&by("kubectl", "Apply")), None, "printed for a repository, with our labels");
        assert_eq!(installation_of(&labelled(pod_default("team"), "here")), None);
    }
}
