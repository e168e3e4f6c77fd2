//! Argo's workflows, and the rights that their pods need.

use serde_json::{Value, json};

use crate::manifests::payload_image;

/// Returns the rights that a namespace's default account needs for Argo's executor to report a step's outputs.
pub fn executor_rights() -> [Value; 2] {
    let rights = "rbac.authorization.k8s.io";
    let version = format!("{rights}/v1");
    [
        json!({
            "apiVersion": version, "kind": "Role", "metadata": {"name": "executor"},
            "rules": [{"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}],
        }),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": {"name": "executor"},
            "roleRef": {"apiGroup": rights, "kind": "Role", "name": "executor"},
            "subjects": [{"kind": "ServiceAccount", "name": "default"}],
        }),
    ]
}

/// Returns a workflow that begins with its first template.
pub fn workflow(name: &str, templates: &[Value]) -> Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": name},
        "spec": {"entrypoint": templates[0]["name"], "templates": templates},
    })
}

/// Returns a container without a name, as a template has it, that runs a shell script.
pub fn shell(script: &str) -> Value {
    json!({"image": payload_image(), "command": ["sh", "-c", script]})
}

/// Returns a template of one container that runs a shell script.
pub fn step(name: &str, script: &str) -> Value {
    json!({"name": name, "container": shell(script)})
}

/// Returns the label of a workflow's pods.
pub fn label_of(workflow: &str) -> String {
    format!("workflows.argoproj.io/workflow={workflow}")
}

/// Returns a workflow's phase, where it is final.
pub fn final_phase(workflow: &Value) -> Option<&str> {
    workflow["status"]["phase"].as_str().filter(|phase| ["Succeeded", "Failed", "Error"].contains(phase))
}

/// Returns an output parameter of the node that a template made.
pub fn output<'w>(workflow: &'w Value, template: &str, parameter: &str) -> Option<&'w str> {
    let nodes = workflow["status"]["nodes"].as_object()?;
    let mut of_template = nodes.values().filter(|node| node["templateName"] == template);
    of_template.find_map(|node| {
        let parameters = node["outputs"]["parameters"].as_array()?;
        parameters.iter().find(|one| one["name"] == parameter)?["value"].as_str()
    })
}
