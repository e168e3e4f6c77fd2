//! The UID ranges of `OpenShift`, emulated: in a namespace containers may only run as users of its range, as under the security
//! context constraint `restricted-v2`. A policy of the API server rejects others, and the pod has a user of the range, which the
//! constraint would have set. Istio's own containers are exempt here; Istio's CNI plugin and platform profile see to them there.

use contract::names::SHIM_CONTAINER;
use e2e::cluster::{Label, MESH, scenario};
use e2e::command::{printed, run};
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::policies::{InstalledPolicies, by_policy, until_in_force};
use e2e::{Namespace, PodView};
use kube::api::PostParams;
use serde_json::{Value, json};

const RANGE: Label = ("e2e.istio-aux.io/uid-range", "enabled");
const USER_OF_RANGE: i64 = 1_000_660_000;

/// The policy that rejects users outside the range, removed when it is dropped.
struct UidRange(String);

impl UidRange {
    fn new() -> Self {
        let name = "e2e-uid-range";
        let expression = "(object.spec.containers + object.spec.?initContainers.orValue([])).all(c, c.name.startsWith('istio-') \
            || c.?securityContext.?runAsUser.orValue(1000660000) >= 1000660000)";
        let rules =
            json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": expression, "message": "the user is outside the namespace's range"}],
            },
        });
        let selector = json!({"namespaceSelector": {"matchLabels": {RANGE.0: RANGE.1}}});
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": selector},
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}).to_string();
        drop(printed(&run("kubectl", &["apply", "--server-side", "-f", "-"], &list)));
        Self(list)
    }
}

impl Drop for UidRange {
    fn drop(&mut self) {
        drop(run("kubectl", &["delete", "--ignore-not-found", "-f", "-"], &self.0));
    }
}

fn payload(name: &str) -> Value {
    let mut spec = pod_spec("Never", &[shell("main", "sleep 1")]);
    spec["securityContext"] = json!({"runAsUser": USER_OF_RANGE, "runAsNonRoot": true});
    pod(name, &spec)
}

#[tokio::test]
async fn in_a_uid_range_pods_are_rejected_by_default_and_complete_without_a_user_of_the_shims_own() {
    scenario("range-none", &[MESH, RANGE, by_policy("e2e-user-none")], async |ns: &Namespace| {
        let _policies = InstalledPolicies::new("e2e-user-none", &["--shim-user=none"]);
        let _range = UidRange::new();
        until_in_force(ns, &payload("probe")).await;
        for mode in ["native", "proxy"] {
            ns.create_object(annotated(payload(mode), "istio-aux.io/mode", mode)).await;
        }
        for mode in ["native", "proxy"] {
            let phase = ns.pod_until(mode, "the end", |pod| PodView(pod).final_phase()).await;
            assert_eq!(phase, "Succeeded", "{mode}");
            assert_eq!(PodView(&ns.pod(mode).await).restarts(SHIM_CONTAINER).unwrap_or_default(), 0, "{mode}");
        }
        scenario("range-default", &[MESH, RANGE, by_policy("e2e-user-default")], async |ns: &Namespace| {
            let _policies = InstalledPolicies::new("e2e-user-default", &[]);
            let dry_run = PostParams { dry_run: true, ..PostParams::default() };
            let error = ns
                .until("the pod's rejection", async || ns.try_create(payload("control"), &dry_run).await.err())
                .await
                .to_string();
            assert!(error.contains("outside the namespace's range"), "{error}");
        })
        .await;
    })
    .await;
}
