//! The UID ranges of `OpenShift`, emulated: in a namespace containers may only run as users of its range, as under the security
//! context constraint `restricted-v2`. A policy of the API server rejects others, and the pod has a user of the range, which the
//! constraint would have set. Istio's own containers are exempt here; Istio's CNI plugin and platform profile see to them there.

use contract::names::SHIM_CONTAINER;
use e2e::cluster::{Label, MESH};
use e2e::kubectl::Applied;
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::policies::{by_policy, install_policies, wait_until_effective};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

const RANGE: Label = ("e2e.istio-aux.io/uid-range", "enabled");
const USER_OF_RANGE: i64 = 1_000_660_000;

/// Rejects users outside the range of a namespace.
fn uid_range() -> Applied {
    let kind = |kind: &str| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "e2e-uid-range"}});
    let (mut policy, mut binding) = (kind("ValidatingAdmissionPolicy"), kind("ValidatingAdmissionPolicyBinding"));
    let expression = "(object.spec.containers + object.spec.?initContainers.orValue([])).all(c, c.name.startsWith('istio-') \
        || c.?securityContext.?runAsUser.orValue(1000660000) >= 1000660000)";
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
    policy["spec"] = json!({
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": expression, "message": "the user is outside the namespace's range"}],
    });
    binding["spec"] = json!({
        "policyName": "e2e-uid-range", "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {RANGE.0: RANGE.1}}},
    });
    Applied::new(&[policy, binding])
}

fn payload(name: &str) -> Value {
    let mut spec = pod_spec("Never", &[shell("main", "sleep 1")]);
    spec["securityContext"] = json!({"runAsUser": USER_OF_RANGE, "runAsNonRoot": true});
    pod(name, &spec)
}

#[tokio::test]
async fn uid_range_admits_pods_without_a_shim_user() {
    scenario("range-none", &[MESH, RANGE, by_policy("e2e-user-none")], async |ns: &Namespace| {
        let _policies = install_policies("e2e-user-none", &["--shim-user=none"]);
        let _range = uid_range();
        wait_until_effective(ns, &payload("probe")).await;
        for mode in ["native", "proxy"] {
            ns.create_object(annotated(payload(mode), "istio-aux.io/mode", mode)).await;
        }
        for mode in ["native", "proxy"] {
            let phase = ns.final_phase(mode).await;
            assert_eq!(phase, "Succeeded", "{mode}");
            assert_eq!(PodView(&ns.pod(mode).await).restarts(SHIM_CONTAINER).unwrap_or_default(), 0, "{mode}");
        }
        scenario("range-default", &[MESH, RANGE, by_policy("e2e-user-default")], async |ns: &Namespace| {
            let _policies = install_policies("e2e-user-default", &[]);
            let error = ns
                .until("the pod's rejection", async || ns.try_dry_run(payload("control")).await.err())
                .await
                .to_string();
            assert!(error.contains("outside the namespace's range"), "{error}");
        })
        .await;
    })
    .await;
}
