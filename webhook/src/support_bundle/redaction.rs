//! What a support bundle keeps of objects: no values of variables, and of other people's pods only what istio-aux decides on.
//! Pure.

use serde_json::{Map, Value, json};

/// What stands in place of a value.
const REDACTED: &str = "REDACTED";
/// An annotation that repeats the whole object, with its variables.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Prefixes of annotations that a decision depends on.
const ANNOTATION_PREFIXES: [&str; 5] =
    ["istio-aux.io/", "sidecar.istio.io/", "proxy.istio.io/", "status.sidecar.istio.io/", "inject.istio.io/"];
/// Fields of a container that a decision depends on.
const CONTAINER_FIELDS: [&str; 9] = [
    "name",
    "image",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "startupProbe",
    "resizePolicy",
    "resources",
    "securityContext",
];
/// Fields of a pod's spec that a decision depends on.
const SPEC_FIELDS: [&str; 7] = [
    "restartPolicy",
    "shareProcessNamespace",
    "runtimeClassName",
    "hostPID",
    "hostNetwork",
    "nodeName",
    "securityContext",
];

/// An object of our own installation, without the values of variables.
pub(super) fn own_object(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.shift_remove(LAST_APPLIED);
        }
    }
    redact_variables(&mut object);
    object
}

fn redact_variables(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "env" {
                    redact_values(field);
                } else {
                    redact_variables(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact_variables),
        _ => {}
    }
}

fn redact_values(variables: &mut Value) {
    for variable in variables.as_array_mut().into_iter().flatten() {
        if let Some(value) = variable.get_mut("value") {
            *value = REDACTED.into();
        }
    }
}

/// A pod of a workload: what a decision depends on, and its status.
pub(super) fn workload_pod(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    let annotations = metadata["annotations"].as_object().into_iter().flatten();
    let annotations = annotations.filter(|(key, _)| ANNOTATION_PREFIXES.iter().any(|prefix| key.starts_with(prefix)));
    let annotations: Map<String, Value> = annotations.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut spec = fields(&pod["spec"], &SPEC_FIELDS);
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        spec[list] = containers.map(|container| fields(container, &CONTAINER_FIELDS)).collect();
    }
    json!({
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "labels": metadata["labels"],
            "annotations": annotations, "ownerReferences": metadata["ownerReferences"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": spec,
        "status": pod["status"],
    })
}

fn fields(object: &Value, names: &[&str]) -> Value {
    let fields = names.iter().filter_map(|name| Some(((*name).to_owned(), object.get(*name)?.clone())));
    Value::Object(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_are_not_kept() {
        let env = json!([{"name": "TOKEN", "value": "secret"}, {"name": "REF", "valueFrom": {}}]);
        let deployment = json!({
            "metadata": {"name": "x", "managedFields": [], "annotations": {LAST_APPLIED: "secret", "a": "b"}},
            "spec": {"template": {"spec": {"containers": [{"name": "webhook", "args": ["serve"], "env": env}]}}},
        });
        let kept = own_object(deployment);
        assert!(!kept.to_string().contains("secret"), "{kept}");
        let container = &kept["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["serve"]));
        assert_eq!(container["env"][0], json!({"name": "TOKEN", "value": REDACTED}));
    }

    #[test]
    fn of_a_workloads_pod_only_what_decides_is_kept() {
        let pod = json!({
            "metadata": {"name": "x", "annotations": {"istio-aux.io/mode": "auto", "note": "secret"}},
            "spec": {
                "restartPolicy": "Never", "volumes": [{"secret": {"secretName": "secret"}}],
                "containers": [{"name": "main", "image": "i", "command": ["secret"], "env": [{"value": "secret"}]}],
            },
            "status": {"phase": "Running"},
        });
        let kept = workload_pod(&pod);
        assert!(!kept.to_string().contains("secret"), "{kept}");
        assert_eq!(kept["metadata"]["annotations"], json!({"istio-aux.io/mode": "auto"}));
        assert_eq!(kept["spec"]["containers"], json!([{"name": "main", "image": "i"}]));
        assert_eq!(kept["status"]["phase"], "Running");
    }
}
