//! The chart and the overlays render the same objects, and select the same pods.

use e2e::command::printed;
use e2e::rendered::{Objects, chart, deployment, objects, on_top_of, overlay, template};
use serde_json::{Value, json};

/// Labels that Helm's conventions ask for, and kustomize's objects do not have.
const HELM_LABELS: [&str; 4] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"];
/// The shim's resources are values of the chart, so it always passes them. Without them the webhook has the same defaults.
const SHIM_RESOURCES: [&str; 2] = ["--shim-requests=cpu=1m,memory=4Mi", "--shim-limits=memory=16Mi"];

/// Removes what only Helm adds.
fn without_helms_own(objects: Objects) -> Objects {
    let strip = |(name, mut object): (String, Value)| {
        for metadata in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(labels) = object.pointer_mut(metadata).and_then(Value::as_object_mut) {
                labels.retain(|label, _| !HELM_LABELS.contains(&label.as_str()));
            }
        }
        let arguments = object.pointer_mut("/spec/template/spec/containers/0/args").and_then(Value::as_array_mut);
        if let Some(arguments) = arguments {
            arguments.retain(|argument| !SHIM_RESOURCES.iter().any(|default| argument == default));
        }
        (name, object)
    };
    objects.into_iter().map(strip).collect()
}

#[test]
fn chart_and_overlays_render_the_same_objects() {
    let components = "components: [../../deploy/components/monitoring, ../../deploy/components/network-policy]";
    let with_tenancy = "components: [../../deploy/components/monitoring, ../../deploy/components/tenancy]";
    let cases: [(&str, Objects, &[&str], usize); 6] = [
        ("policy", overlay("overlays/policy"), &["--set=profile=policy"], 12),
        (
            "components",
            on_top_of("with-components", "self-signed", components),
            &["--set=monitoring.enabled=true", "--set=networkPolicy=true"],
            17,
        ),
        (
            "tenancy",
            on_top_of("with-tenancy", "self-signed", with_tenancy),
            &["--set=monitoring.enabled=true", "--set=tenancy.enabled=true"],
            25,
        ),
        ("self-signed", overlay("overlays/self-signed"), &[], 14),
        ("failure-ignore", overlay("overlays/failure-ignore"), &["--set=failurePolicy=Ignore"], 14),
        ("cert-manager", overlay("overlays/cert-manager"), &["--set=certificate.from=cert-manager"], 11),
    ];
    for (name, by_kustomize, values, count) in cases {
        let by_helm = without_helms_own(chart(values));
        assert_eq!(by_kustomize.len(), count, "{name}: {:?}", by_kustomize.keys());
        for (object, expected) in &by_kustomize {
            assert_eq!(by_helm.get(object), Some(expected), "{name}: {object}");
        }
        assert_eq!(by_helm.len(), count, "{name}: {:?}", by_helm.keys());
    }
}

#[test]
fn policy_selects_the_pods_that_the_webhook_selects() {
    // A policy has no pods of its own to leave alone.
    let own = json!({"key": "app.kubernetes.io/name", "operator": "NotIn", "values": ["istio-aux"]});
    let webhooks = &overlay("overlays/self-signed")["MutatingWebhookConfiguration istio-aux"]["webhooks"];
    let policies = overlay("overlays/policy");
    // The policy profile has nothing for Kubeflow's tenants.
    let of_tenants = |webhook: &&Value| webhook["clientConfig"]["service"]["path"] != "/mutate";
    for webhook in webhooks.as_array().expect("there are webhooks").iter().filter(|webhook| !of_tenants(webhook)) {
        let name = webhook["name"].as_str().expect("it has a name").trim_end_matches(".istio-aux.io").to_owned();
        let binding = format!("MutatingAdmissionPolicyBinding istio-aux-{}", name.replace('.', "-"));
        let resources = &policies[&binding]["spec"]["matchResources"];
        assert_eq!(resources["namespaceSelector"], webhook["namespaceSelector"], "{name}");
        let mut pods = webhook["objectSelector"].clone();
        pods["matchExpressions"].as_array_mut().expect("a list").retain(|expression| *expression != own);
        assert_eq!(resources["objectSelector"], pods, "{name}");
    }
}

#[test]
fn chart_objects_have_helms_and_the_common_labels() {
    let everything = [
        "--set=monitoring.enabled=true",
        "--set=networkPolicy=true",
        "--set=tenancy.enabled=true",
        "--set=commonLabels.owner=platform",
    ];
    for profile in ["--set=profile=webhook", "--set=profile=policy"] {
        for (name, object) in chart(&[&everything[..], &[profile]].concat()) {
            let labels = &object["metadata"]["labels"];
            for label in HELM_LABELS.into_iter().chain(["app.kubernetes.io/name", "owner"]) {
                assert!(labels[label].is_string(), "{name} has no {label}: {labels}");
            }
        }
    }
    let selectors = deployment(&chart(&everything))["selector"]["matchLabels"].clone();
    assert_eq!(selectors, json!({"app.kubernetes.io/name": "istio-aux"}), "a selector cannot be changed by an upgrade");
}

#[test]
fn validating_policies_are_rendered_from_kubernetes_1_30() {
    let policies = |version: &str| {
        let output = template(&[version, "--no-hooks", "--set=image.registry=registry.example/x"]);
        objects(&printed(&output)).keys().filter(|name| name.starts_with("ValidatingAdmissionPolicy")).count()
    };
    assert_eq!(policies("--kube-version=1.30.0"), 4);
    assert_eq!(policies("--kube-version=1.29.0"), 0);
}
