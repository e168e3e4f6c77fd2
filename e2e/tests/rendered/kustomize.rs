//! `images:` and `namespace:` of a kustomization on top of an overlay reach every field that they concern.

use std::fs;

use e2e::install_methods::LOADED_IMAGES;
use e2e::rendered::{container, has_argument, objects, on_top_of, overlay};
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
    for overlay in ["self-signed", "cert-manager"] {
        let objects = on_top_of(&format!("with-images-{overlay}"), overlay, &images);
        assert_eq!(container(&objects)["image"], "registry.example/hook:1.2.3");
        assert!(has_argument(&objects, "--shim-image=$(SHIM_IMAGE)"));
        let variable = json!([{"name": "SHIM_IMAGE", "value": format!("registry.example/shim@{digest}")}]);
        assert_eq!(container(&objects)["env"], variable);
        for (name, object) in &objects {
            assert!(!strings(object).iter().any(|text| text.contains(LOADED_IMAGES)), "{name}");
        }
    }
}

#[test]
fn namespace_reaches_service_certificate_and_rights() {
    let plain = "namespace: mesh-tools";
    let names = "namespace: mesh-tools\ntransformers: [../../deploy/transformers/certificate-names]";
    for (overlay, rest) in [("self-signed", plain), ("failure-ignore", plain), ("cert-manager", names)] {
        let objects = on_top_of(&format!("with-namespace-{overlay}"), overlay, rest);
        let configuration = &objects["MutatingWebhookConfiguration istio-aux"];
        for webhook in configuration["webhooks"].as_array().expect("there are webhooks") {
            assert_eq!(webhook["clientConfig"]["service"]["namespace"], "mesh-tools", "{overlay}");
        }
        for (name, object) in &objects {
            for field in ["/metadata/namespace", "/subjects/0/namespace"] {
                let namespace = object.pointer(field).unwrap_or(&Value::Null);
                assert!(namespace.is_null() || namespace == "mesh-tools", "{overlay}: {name}: {field}: {namespace}");
            }
        }
        if overlay == "cert-manager" {
            assert_eq!(objects["Certificate istio-aux"]["spec"]["dnsNames"], json!(["istio-aux.mesh-tools.svc"]));
            let annotations = &configuration["metadata"]["annotations"];
            assert_eq!(annotations["cert-manager.io/inject-ca-from"], "mesh-tools/istio-aux");
        }
    }
}

#[test]
fn embedded_manifests_equal_the_overlay() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/src/installation/webhook.yaml");
    let embedded = objects(&fs::read_to_string(file).expect("the file is there"));
    let next = "next: kubectl kustomize deploy/overlays/self-signed > cli/src/installation/webhook.yaml";
    assert!(embedded == overlay("overlays/self-signed"), "webhook.yaml is older; {next}");
}
