//! The UID ranges of `OpenShift`, emulated: under the security context constraint `restricted-v2`, a plug-in before the webhooks gives
//! each container a user of its namespace's range, and validation rejects a container without one. Istio's own containers are exempt
//! here; Istio's CNI plugin and platform profile see to them there.

use contract::names::MODE_ANNOTATION;
use e2e::cluster::{Label, MESH, OPT_IN};
use e2e::kubectl::Applied;
use e2e::manifests::{annotated, pod, pod_spec, shell};
use e2e::webhook_option::WebhookOption;
use e2e::{PodView, scenario};
use serde_json::{Value, json};

const RANGE: Label = ("e2e.istio-aux.io/uid-range", "enabled");
const NAME: &str = "e2e-uid-range";

/// Returns the JSON Patch, in CEL, that gives each container of a list a user of the range.
fn users(list: &str) -> String {
    let containers = format!("object.spec.?{list}.orValue([])");
    let path = format!("'/spec/{list}/' + string({containers}.map(o, o.name).indexOf(c.name)) + '/securityContext");
    format!(
        "{containers}.filter(c, !c.name.startsWith('istio-') && !has(c.securityContext)).map(c, \
         JSONPatch{{op: 'add', path: {path}', value: Object.spec.{list}.securityContext{{runAsUser: 1000660000}}}}) \
         + {containers}.filter(c, !c.name.startsWith('istio-') && has(c.securityContext) && !has(c.securityContext.runAsUser)).map(c, \
         JSONPatch{{op: 'add', path: {path}/runAsUser', value: 1000660000}})"
    )
}

/// Gives containers a user of the range, and rejects those without.
fn uid_range() -> Applied {
    let kind = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": NAME}, "spec": spec});
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
    let constraints = json!({"resourceRules": rules});
    let patch = format!("{} + {}", users("containers"), users("initContainers"));
    let expression = "(object.spec.containers + object.spec.?initContainers.orValue([])).all(c, c.name.startsWith('istio-') \
        || c.?securityContext.?runAsUser.orValue(0) >= 1000660000)";
    let selected = json!({"namespaceSelector": {"matchLabels": {RANGE.0: RANGE.1}}});
    Applied::new(&[
        kind(
            "MutatingAdmissionPolicy",
            json!({
                "reinvocationPolicy": "IfNeeded", "matchConstraints": constraints,
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
            }),
        ),
        kind("MutatingAdmissionPolicyBinding", json!({"policyName": NAME, "matchResources": selected})),
        kind(
            "ValidatingAdmissionPolicy",
            json!({
                "matchConstraints": constraints,
                "validations": [{"expression": expression, "message": "the user is outside the namespace's range"}],
            }),
        ),
        kind(
            "ValidatingAdmissionPolicyBinding",
            json!({"policyName": NAME, "validationActions": ["Deny"], "matchResources": selected}),
        ),
    ])
}

fn payload(name: &str) -> Value {
    let mut spec = pod_spec("Never", &[shell("main", "sleep 1; test $(id -u) = 1000660000")]);
    spec["securityContext"] = json!({"runAsNonRoot": true});
    annotated(pod(name, &spec), MODE_ANNOTATION, name)
}

#[tokio::test]
async fn shim_runs_as_a_user_of_the_namespaces_range() {
    let ns = &scenario("uid-range", &[MESH, OPT_IN, RANGE]).await;
    let _range = uid_range();
    let refusal = ns.until("the shim's rejection", async || ns.try_dry_run(payload("native")).await.err()).await;
    assert!(refusal.to_string().contains("outside the namespace's range"), "by default it has user 65019: {refusal}");
    let _option = WebhookOption::set(&["--shim-user=none"]);
    for mode in ["native", "proxy", "status"] {
        ns.create_object(payload(mode)).await;
    }
    for mode in ["native", "proxy", "status"] {
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert_eq!(PodView(&pod).restarts_of_shim(), 0, "{mode}");
    }
}
