//! The objects that the chart and the overlays render, by their kind and name. Needs helm and kubectl, and no cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::command::{printed, run_offline};
use crate::install_methods::LOADED_IMAGES;

/// The server that templates are rendered for.
pub const KUBERNETES: &str = "--kube-version=1.34.0";

/// The webhook configurations.
pub const CONFIGURATIONS: [&str; 2] =
    ["MutatingWebhookConfiguration istio-aux", "MutatingWebhookConfiguration zz-istio-aux"];

/// Objects by kind and name.
pub type Objects = BTreeMap<String, Value>;

/// Returns the objects of the webhook's chart with these values, and images.
pub fn chart(values: &[&str]) -> Objects {
    let registry = format!("--set=image.registry={LOADED_IMAGES}");
    let words =
        ["template", "istio-aux", "helm/istio-aux", "--namespace=istio-aux", KUBERNETES, "--no-hooks", &registry];
    objects(&printed(&run_offline("helm", &[&words, values].concat())))
}

/// Returns the objects that kustomize makes of a directory, relative to `deploy`.
pub fn overlay(directory: &str) -> Objects {
    objects(&printed(&run_offline("kubectl", &["kustomize", directory])))
}

/// Reads objects by kind and name, but namespaces: Helm creates none. Kustomize gives one to kinds that it does not know.
pub fn objects(manifests: &str) -> Objects {
    let all: Vec<Value> = serde_saphyr::from_str_multiple(manifests).expect("manifests are YAML");
    let all = all.into_iter().filter(|object| !object.is_null() && object["kind"] != "Namespace");
    let text = |field: &Value| field.as_str().expect("it is a string").to_owned();
    let by_name = all.map(|mut object| {
        let kind = text(&object["kind"]);
        if kind.starts_with("ValidatingAdmissionPolicy") {
            object["metadata"].as_object_mut().expect("it has metadata").remove("namespace");
        }
        (format!("{kind} {}", text(&object["metadata"]["name"])), object)
    });
    by_name.collect()
}

/// Returns the objects of a kustomization on top of an overlay, which is written below `target`.
pub fn on_top_of(name: &str, overlay: &str, rest: &str) -> Objects {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")).join(name);
    fs::create_dir_all(&directory).expect("the directory is made");
    let text = format!("resources: [../../deploy/overlays/{overlay}]\n{rest}\n");
    fs::write(directory.join("kustomization.yaml"), text).expect("the file is written");
    self::overlay(&format!("../target/{name}"))
}

/// Returns the webhooks of both configurations.
pub fn webhooks(objects: &Objects) -> impl Iterator<Item = &Value> {
    let of_one = move |name: &str| objects[name]["webhooks"].as_array().expect("there are webhooks");
    CONFIGURATIONS.into_iter().flat_map(of_one)
}

/// Returns the webhook's container.
pub fn container(objects: &Objects) -> &Value {
    &objects["Deployment istio-aux"]["spec"]["template"]["spec"]["containers"][0]
}

/// Returns true if the webhook has an argument.
pub fn has_argument(objects: &Objects, argument: &str) -> bool {
    container(objects)["args"].as_array().expect("it has arguments").iter().any(|other| other == argument)
}
