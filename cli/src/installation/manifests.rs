//! Renders the manifests of the webhook profile, for a namespace and images, from the overlay `self-signed`.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use contract::names::PIPELINES_ROLE;
use serde_json::{Value, json};

const RENDERED: &str = concat!(
    include_str!("../../../deploy/overlays/self-signed/namespace.yaml"),
    include_str!("../../../deploy/overlays/self-signed/istio-aux.yaml")
);
const TENANCY: &str = include_str!("../../../deploy/overlays/tenancy/tenancy.yaml");
const NAMESPACE: &str = "istio-aux";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Is the variable of the webhook's container to which its option `--shim-image` refers.
const SHIM_IMAGE_VARIABLE: &str = "SHIM_IMAGE";

/// Returns the manifests in YAML, one document for each object, with the images of webhook and shim.
pub(crate) fn manifests(namespace: &str, webhook: &str, shim: &str) -> Result<String> {
    let mut text = String::new();
    for mut object in objects()? {
        move_to(&mut object, namespace);
        if object["kind"] == "Deployment" {
            set_images(&mut object, webhook, shim);
        }
        let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string_with_options(&object, options).context("cannot write the manifests")?);
    }
    Ok(text)
}

/// Returns the API group and the plural of each kind in the manifests.
pub(crate) fn resources() -> Result<BTreeSet<(String, String)>> {
    let resource = |object: &Value| {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let group = text("apiVersion").split_once('/').map_or(String::new(), |(group, _)| group.to_owned());
        let kind = text("kind").to_lowercase();
        let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
        (group, plural)
    };
    Ok(objects()?.iter().map(resource).collect())
}

fn objects() -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(RENDERED).context("cannot read the manifests")
}

/// Returns every object that an installation by manifests may have in this namespace, the controller for tenants included.
pub(crate) fn all_objects(namespace: &str) -> Result<Vec<Value>> {
    let mut objects = objects()?;
    objects.extend(serde_saphyr::from_multiple::<Value>(TENANCY).context("cannot read the manifests")?);
    for object in &mut objects {
        move_to(object, namespace);
    }
    Ok(objects)
}

/// Returns the `ClusterRole` that lets a tenant's accounts use Kubeflow Pipelines, without the installation's labels.
pub(crate) fn pipelines_role() -> Result<Value> {
    let objects = serde_saphyr::from_multiple::<Value>(TENANCY).context("cannot read the manifests")?;
    let is_role = |object: &Value| object["kind"] == "ClusterRole" && object["metadata"]["name"] == PIPELINES_ROLE;
    let mut role = objects.into_iter().find(is_role).context("the manifests have no such ClusterRole")?;
    role["metadata"] = json!({"name": PIPELINES_ROLE});
    Ok(role)
}

/// Moves an object to a namespace, which the Namespace itself becomes.
fn move_to(object: &mut Value, namespace: &str) {
    set_namespace(object, namespace);
    if object["kind"] == "Namespace" {
        object["metadata"]["name"] = namespace.into();
    }
}

/// Replaces the namespace wherever a field or an account refers to it.
fn set_namespace(value: &mut Value, namespace: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "namespace" && value == NAMESPACE {
                    *value = namespace.into();
                } else {
                    set_namespace(value, namespace);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| set_namespace(item, namespace)),
        Value::String(text) => {
            *text = text.replace(&format!("{ACCOUNT_PREFIX}{NAMESPACE}:"), &format!("{ACCOUNT_PREFIX}{namespace}:"));
        }
        _ => {}
    }
}

fn set_images(deployment: &mut Value, webhook: &str, shim: &str) {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        container["image"] = webhook.into();
        for variable in container["env"].as_array_mut().into_iter().flatten() {
            if variable["name"] == SHIM_IMAGE_VARIABLE {
                variable["value"] = shim.into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(namespace: &str) -> Vec<Value> {
        let text = manifests(namespace, "r.example/webhook:9", "r.example/shim:9").unwrap();
        serde_saphyr::from_multiple(&text).unwrap()
    }

    fn of_kind<'v>(objects: &'v [Value], kind: &str) -> &'v Value {
        objects.iter().find(|object| object["kind"] == kind).unwrap()
    }

    #[test]
    fn images_reach_the_container_and_the_variable() {
        let objects = rendered("istio-aux");
        let container = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "r.example/webhook:9");
        assert_eq!(container["env"], serde_json::json!([{"name": "SHIM_IMAGE", "value": "r.example/shim:9"}]));
        let args = container["args"].as_array().unwrap();
        assert!(args.contains(&"--shim-image=$(SHIM_IMAGE)".into()), "{args:?}");
    }

    #[test]
    fn role_of_tenants_is_the_charts_without_its_labels() {
        let role = pipelines_role().unwrap();
        assert_eq!(role["metadata"], json!({"name": "istio-aux-pipelines"}));
        assert_eq!(role["rules"][0]["apiGroups"][0], "pipelines.kubeflow.org");
    }

    #[test]
    fn another_namespace_reaches_every_reference() {
        let objects = rendered("elsewhere");
        assert_eq!(of_kind(&objects, "Namespace")["metadata"]["name"], "elsewhere");
        let webhooks = of_kind(&objects, "MutatingWebhookConfiguration")["webhooks"].as_array().unwrap();
        assert!(webhooks.iter().all(|webhook| webhook["clientConfig"]["service"]["namespace"] == "elsewhere"));
        assert_eq!(of_kind(&objects, "ClusterRoleBinding")["subjects"][0]["namespace"], "elsewhere");
        for object in &objects {
            let text = object.to_string();
            assert!(!text.contains(r#""namespace":"istio-aux""#), "{text}");
            assert!(!text.contains("serviceaccount:istio-aux:") && !text.contains("istio-aux.svc"), "{text}");
        }
    }

    #[test]
    fn rendered_values_change_nothing_else() {
        let before = objects().unwrap();
        let container = &of_kind(&before, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let [webhook, shim] = [&container["image"], &container["env"][0]["value"]].map(|image| image.as_str().unwrap());
        let text = manifests(NAMESPACE, webhook, shim).unwrap();
        let after: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(after, before);
    }

    #[test]
    fn every_object_has_the_label_that_removes_it() {
        for object in objects().unwrap() {
            assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/name"], "istio-aux", "{object}");
        }
    }

    #[test]
    fn resources_have_group_and_plural() {
        let resources = resources().unwrap();
        for (group, plural) in [
            ("", "services"),
            ("", "namespaces"),
            ("rbac.authorization.k8s.io", "clusterroles"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ] {
            assert!(resources.contains(&(group.to_owned(), plural.to_owned())), "{plural}: {resources:?}");
        }
    }
}
