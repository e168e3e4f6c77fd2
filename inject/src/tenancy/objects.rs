//! The objects that a tenant's namespace should have.

use contract::kind::{POD_DEFAULTS, ROLE_BINDINGS};
use contract::names::{ACCESS_PIPELINES_LABEL, MANAGED_BY_LABEL, PIPELINES_ROLE, TENANCY_MANAGER};
use serde_json::{Value, json};

use super::pipelines_token::{mount, variable, volume};

/// The name of the `RoleBinding`.
pub const ROLE_BINDING_NAME: &str = "istio-aux-pipelines";
/// The volume that Kubeflow's documentation has in this `PodDefault`.
const POD_DEFAULT_VOLUME: &str = "volume-kf-pipeline-token";

/// Returns the `RoleBinding` that lets accounts of a namespace use pipelines in it. Kubeflow's own role says what they may do.
#[must_use]
pub fn role_binding(namespace: &str, accounts: &[String]) -> Value {
    let subject = |account: &String| json!({"kind": "ServiceAccount", "name": account, "namespace": namespace});
    let subjects: Vec<Value> = accounts.iter().map(subject).collect();
    json!({
        "apiVersion": ROLE_BINDINGS.api_version(), "kind": ROLE_BINDINGS.name,
        "metadata": metadata(namespace, ROLE_BINDING_NAME),
        "roleRef": {"apiGroup": ROLE_BINDINGS.group, "kind": "ClusterRole", "name": PIPELINES_ROLE},
        "subjects": subjects,
    })
}

/// Returns the `PodDefault` of Kubeflow's documentation, which Kubeflow's user interface offers for notebooks.
#[must_use]
pub fn pod_default(namespace: &str) -> Value {
    json!({
        "apiVersion": POD_DEFAULTS.api_version(), "kind": POD_DEFAULTS.name,
        "metadata": metadata(namespace, ACCESS_PIPELINES_LABEL),
        "spec": {
            "desc": "Allow access to Kubeflow Pipelines",
            "selector": {"matchLabels": {ACCESS_PIPELINES_LABEL: "true"}},
            "env": [variable()],
            "volumeMounts": [mount(POD_DEFAULT_VOLUME)],
            "volumes": [volume(POD_DEFAULT_VOLUME)],
        },
    })
}

fn metadata(namespace: &str, name: &str) -> Value {
    json!({"name": name, "namespace": namespace, "labels": {MANAGED_BY_LABEL: TENANCY_MANAGER}})
}

/// Returns true if `istio-aux-controller` keeps the object.
#[must_use]
pub fn is_ours(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGED_BY_LABEL] == TENANCY_MANAGER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_as_kubeflow_documents_them() {
        let accounts = ["default".to_owned(), "trainer".to_owned()];
        let objects = [role_binding("team", &accounts), pod_default("team")];
        let yaml: Vec<String> = objects.iter().map(|object| serde_saphyr::to_string(object).unwrap()).collect();
        insta::assert_snapshot!(yaml.join("---\n"));
    }

    #[test]
    fn only_objects_with_our_label_are_ours() {
        assert!(is_ours(&pod_default("team")));
        assert!(!is_ours(&json!({"metadata": {"name": ROLE_BINDING_NAME}})));
        assert!(!is_ours(&json!({"metadata": {"labels": {MANAGED_BY_LABEL: "Helm"}}})));
    }
}
