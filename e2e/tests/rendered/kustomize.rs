//! The overlays are what the chart renders, and `images:` and `namespace:` of a kustomization on top reach every field that they
//! concern.

use e2e::command::{printed, run_offline};
use e2e::install_methods::LOADED_IMAGES;
use e2e::rendered::{container, has_argument, on_top_of, webhooks};
use serde_json::{Value, json};

/// Returns every string in a value.
fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn images_reach_the_webhook_and_the_shim() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let images = format!(
        "images:\n- {{name: {LOADED_IMAGES}/webhook, newName: registry.example/hook, newTag: 1.2.3}}\n- {{name: {LOADED_IMAGES}/shim, newName: registry.example/shim, digest: {digest}}}"
    );
    let objects = on_top_of("with-images", "self-signed", &images);
    assert_eq!(container(&objects)["image"], "registry.example/hook:1.2.3");
    assert!(has_argument(&objects, "--shim-image=$(SHIM_IMAGE)"));
    let variable = json!([{"name": "SHIM_IMAGE", "value": format!("registry.example/shim@{digest}")}]);
    assert_eq!(container(&objects)["env"], variable);
    for (name, object) in &objects {
        assert!(!strings(object).iter().any(|text| text.contains(LOADED_IMAGES)), "{name}");
    }
}

#[test]
fn namespace_reaches_service_and_rights() {
    let objects = on_top_of("with-namespace", "self-signed", "namespace: mesh-tools");
    for webhook in webhooks(&objects) {
        assert_eq!(webhook["clientConfig"]["service"]["namespace"], "mesh-tools", "{}", webhook["name"]);
    }
    for (name, object) in &objects {
        for field in ["/metadata/namespace", "/subjects/0/namespace"] {
            let namespace = object.pointer(field).unwrap_or(&Value::Null);
            assert!(namespace.is_null() || namespace == "mesh-tools", "{name}: {field}: {namespace}");
        }
    }
}

#[test]
fn patches_of_the_install_page_take_effect() {
    let patches = "patches:
- patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --log-format=json}
  target: {kind: Deployment}
- patch: |
    $patch: delete
    apiVersion: admissionregistration.k8s.io/v1
    kind: ValidatingAdmissionPolicy
    metadata: {name: istio-aux-ended}";
    let objects = on_top_of("with-patches", "self-signed", patches);
    assert!(has_argument(&objects, "--log-format=json"));
    let policies: Vec<_> = objects.keys().filter(|name| name.starts_with("ValidatingAdmissionPolicy ")).collect();
    assert_eq!(policies, ["ValidatingAdmissionPolicy istio-aux-ca-bundle-only"]);
}

#[test]
fn overlays_and_the_charms_objects_are_what_the_chart_renders() {
    let tenancy = ["./render", "--set=tenancy.enabled=true", "--show-only=templates/tenancy.yaml"];
    let name = "--set=fullnameOverride=juju-application-webhook";
    let charm = ["NAMESPACE=juju-model", "./render", name, "--set=tenancy.enabled=true"];
    for (file, words) in [
        ("overlays/self-signed/istio-aux.yaml", &["./render"][..]),
        ("overlays/tenancy/tenancy.yaml", &tenancy),
        ("../charm/src/cluster/chart.yaml", &charm),
        ("../charm/src/grafana_dashboards/istio-aux.json", &["./render", "charm-dashboard"]),
    ] {
        let rendered = printed(&run_offline("env", words));
        let written = printed(&run_offline("cat", &[file]));
        assert!(written == rendered, "deploy/{file} is older than the chart; next: make manifests");
    }
}
