//! The labels of the chart's objects, and the policies, which `istio-aux policy` renders too.

use e2e::command::{printed, run_offline};
use e2e::install_methods::{BINARY, shim_image};
use e2e::rendered::{Objects, chart, objects, webhooks};
use serde_json::json;

/// Labels that Helm's conventions ask for.
const HELM_LABELS: [&str; 4] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"];
/// Prints the policy profile as the command line does.
fn by_command(options: &[&str]) -> Objects {
    objects(&printed(&run_offline(BINARY, &[&["policy", &shim_image()], options].concat())))
}

#[test]
fn chart_and_command_render_the_same_policies() {
    let cases: [(&[&str], &[&str]); 3] = [
        (&[], &[]),
        (
            &["--set=shim.user=proxy", "--set=shim.delivery=image-volume"],
            &["--shim-user=proxy", "--delivery=image-volume"],
        ),
        (&["--set=shim.user=none", "--set=shim.limits.memory=null"], &["--shim-user=none", "--shim-limits=none"]),
    ];
    for (values, options) in cases {
        let mut by_helm = chart(&[&["--set=profile=policy"], values].concat());
        let by_command = by_command(options);
        for object in by_helm.values_mut() {
            let labels = object["metadata"]["labels"].as_object_mut().expect("it has labels");
            labels.retain(|label, _| !HELM_LABELS.contains(&label.as_str()));
        }
        assert_eq!(by_helm, by_command, "{values:?}");
    }
}

#[test]
fn policy_selects_the_pods_that_the_webhook_selects() {
    // A policy has no pods of its own to leave alone.
    let own = json!({"key": "app.kubernetes.io/name", "operator": "NotIn", "values": ["istio-aux"]});
    let policies = by_command(&[]);
    let objects = chart(&[]);
    let mut count = 0;
    // The policy profile has nothing for Kubeflow's tenants.
    for webhook in webhooks(&objects).filter(|webhook| webhook["clientConfig"]["service"]["path"] == "/mutate") {
        let name = webhook["name"].as_str().expect("it has a name").trim_end_matches(".istio-aux.io");
        let way = name.split_once('.').expect("it names the way to opt in").1;
        let mut pods = webhook["objectSelector"].clone();
        pods["matchExpressions"].as_array_mut().expect("a list").retain(|expression| *expression != own);
        for kind in ["run-to-completion", "long-running"] {
            let binding = format!("MutatingAdmissionPolicyBinding istio-aux-{kind}-{way}");
            let resources = &policies[&binding]["spec"]["matchResources"];
            assert_eq!(resources["namespaceSelector"], webhook["namespaceSelector"], "{name}");
            assert_eq!(resources["objectSelector"], pods, "{name}");
        }
        count += 1;
    }
    assert_eq!(count, 9, "startup-hold, add-shim and require-shim, for three ways to opt in");
}

#[test]
fn chart_objects_have_helms_and_the_common_labels() {
    let everything = ["--set=monitoring.enabled=true", "--set=networkPolicy=true", "--set=commonLabels.owner=platform"];
    // The policy profile rejects what it does not read.
    for profile in ["--set=profile=webhook,tenancy.enabled=true", "--set=profile=policy"] {
        for (name, object) in chart(&[&everything[..], &[profile]].concat()) {
            let labels = &object["metadata"]["labels"];
            for label in HELM_LABELS.into_iter().chain(["app.kubernetes.io/name", "owner"]) {
                assert!(labels[label].is_string(), "{name} has no {label}: {labels}");
            }
        }
    }
}
