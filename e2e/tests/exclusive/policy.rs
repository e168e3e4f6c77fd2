//! The policy profile against the webhook, over the table of cases in `inject/tests/cases.yaml`: both make the same of each pod, except
//! where the table's column `policy` says otherwise. The profile has another name here, and a namespace that the webhook does not
//! serve.

use contract::names::{HOLD_FIELD, PROXY_CONFIG_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER, STATUS_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, payload_image, pod as pod_of, pod_spec, shell, without_token};
use e2e::policies::{by_policy, install_policies, wait_until_effective};
use e2e::webhook_option::WebhookOption;
use e2e::{Namespace, scenario};
use json_patch::{diff, merge};
use serde_json::{Value, json};

const TABLE: &str = include_str!("../../../inject/tests/cases.yaml");

/// Returns what the API server makes of a pod, without what differs between two namespaces.
pub(crate) async fn dry_run(ns: &Namespace, pod: &Value) -> Value {
    let made = match ns.try_dry_run(pod.clone()).await {
        Ok(made) => made,
        Err(error) => return json!(error.to_string().replace(ns.name(), "NAMESPACE")),
    };
    let mut made = without_token(made);
    for field in ["uid", "creationTimestamp", "managedFields"] {
        made["metadata"].as_object_mut().expect("metadata is an object").remove(field);
    }
    serde_json::from_str(&made.to_string().replace(ns.name(), "NAMESPACE")).expect("it is JSON still")
}

pub(crate) fn status(pod: &Value) -> Value {
    let text = pod["metadata"]["annotations"][STATUS_ANNOTATION].as_str().unwrap_or("null");
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

/// Removes what no policy can write: warnings, and a status that the webhook has written for them only.
pub(crate) fn without_warnings(mut pod: Value, policy_has_status: bool) -> Value {
    let mut status = status(&pod);
    let Some(fields) = status.as_object_mut() else { return pod };
    if fields.remove("warnings").is_some() {
        let annotations = pod["metadata"]["annotations"].as_object_mut().expect("annotations are an object");
        if policy_has_status {
            annotations.insert(STATUS_ANNOTATION.to_owned(), json!(status.to_string()));
        } else {
            annotations.remove(STATUS_ANNOTATION);
        }
    }
    pod
}

/// Returns the pods of the table that a cluster can make, with images.
fn pods(table: &Value) -> Vec<(String, Value, &Value)> {
    let list = |value: &'static str, object: &'_ Value| object[value].as_array().cloned().unwrap_or_default();
    let mut pods = Vec::new();
    for rule in table["rules"].as_array().expect("rules are a list") {
        for case in rule["cases"].as_array().expect("cases are a list") {
            if case["offline"] == true {
                continue;
            }
            let mut pod = table["pod"].clone();
            merge(&mut pod, &case["pod"]);
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            if pod.to_string().contains("\"auto\"") {
                // Istio notes the token's random volume name in an annotation.
                pod["spec"]["automountServiceAccountToken"] = json!(false);
            }
            for field in ["containers", "initContainers"] {
                let mut containers = list(field, &pod["spec"]);
                for container in &mut containers {
                    if container["image"].is_null() {
                        container["image"] = json!(payload_image());
                    }
                }
                if !containers.is_empty() {
                    pod["spec"][field] = json!(containers);
                }
            }
            let name = |object: &Value, field: &str| object[field].as_str().unwrap_or_default().to_owned();
            pods.push((format!("{} {}", name(rule, "rule"), name(case, "case")), pod, case));
        }
    }
    pods
}

/// Returns what differs from the table, if anything.
fn difference(case: &Value, webhook: Value, policy: &Value) -> Option<String> {
    if let Some(refusal) = webhook.as_str() {
        // Istio's injector rejects the pod, and so neither decides.
        let is_istios = refusal.contains("sidecar-injector.istio.io") && webhook == *policy;
        return (!is_istios).then(|| format!("the webhook's pod is rejected: {refusal}; the policy's: {policy}"));
    }
    let expected = case["mode"].as_str().unwrap_or_default();
    let by_webhook = status(&webhook);
    let text = webhook.to_string();
    // Without a warning neither mode has a status.
    let is_so_without_status = match expected {
        "off" => !text.contains(SHIM_CONTAINER),
        "hold" => !text.contains(SHIM_CONTAINER) && text.contains(HOLD_FIELD),
        _ => false,
    };
    if !(by_webhook.is_null() && is_so_without_status) && by_webhook["mode"] != expected {
        return Some(format!("the webhook's mode is {}, and {expected} in the table", by_webhook["mode"]));
    }
    if let Some(other) = case["policy"]["mode"].as_str() {
        let by_policy = status(policy);
        let has_shim = policy.to_string().contains(SHIM_CONTAINER);
        let is_as_said = by_policy["mode"] == other && has_shim == (other != "hold");
        return (!is_as_said).then(|| format!("the policy's status is {by_policy}, and its mode in the table {other}"));
    }
    let webhook = without_warnings(webhook, !status(policy).is_null());
    let patch = diff(&webhook, policy);
    (!patch.is_empty()).then(|| format!("what the webhook makes is the policy's after {patch}"))
}

#[tokio::test]
async fn policy_and_webhook_agree_with_the_table() {
    let table: Value = serde_saphyr::from_str(TABLE).expect("the table is YAML");
    let pods = pods(&table);
    let policed = &scenario("policy", &[MESH, by_policy("e2e-table")]).await;
    let by_webhook = &scenario("policy-webhook", &[MESH, OPT_IN]).await;
    let _installed = install_policies("e2e-table", &[]);
    wait_until_effective(policed, &pods[0].1).await;
    let mut wrong = Vec::new();
    for (name, pod, case) in &pods {
        let [webhook, policy] = [dry_run(by_webhook, pod).await, dry_run(policed, pod).await];
        wrong.extend(difference(case, webhook, &policy).map(|what| format!("{name}: {what}")));
    }
    assert!(wrong.is_empty(), "{} of {} pods:\n{}", wrong.len(), pods.len(), wrong.join("\n"));
}

#[tokio::test]
async fn policy_and_webhook_agree_on_a_hand_injected_pod() {
    let table: Value = serde_saphyr::from_str(TABLE).expect("the table is YAML");
    let policed = &scenario("policy-by-hand", &[by_policy("e2e-by-hand")]).await;
    let by_webhook = &scenario("policy-by-hand-webhook", &[OPT_IN]).await;
    let _installed = install_policies("e2e-by-hand", &[]);
    let (_, mut pod, _) = pods(&table).swap_remove(0);
    let status = json!({"containers": [PROXY_CONTAINER]}).to_string();
    pod["metadata"]["annotations"] = json!({"sidecar.istio.io/status": status});
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    wait_until_effective(policed, &{
        let mut with_proxy = pod.clone();
        with_proxy["spec"]["containers"][1] = json!({"name": PROXY_CONTAINER, "image": payload_image()});
        with_proxy
    })
    .await;
    let exec = |command: &[&str]| json!({"exec": {"command": command}});
    let sidecar = |name: &str| json!({"name": name, "image": payload_image(), "restartPolicy": "Always"});
    let mut shim = sidecar(SHIM_CONTAINER);
    shim["args"] = json!(["watch", "--await=main"]);
    let hook = json!({"lifecycle": {"preStop": exec(&["true"])}});
    for (case, hold, proxy, init) in [
        ("plain", json!(null), json!({}), json!([])),
        ("another hook", json!(null), hook.clone(), json!([])),
        ("another hook, and the hold", json!("holdApplicationUntilProxyStarts: true"), hook.clone(), json!([])),
        ("another hook, and no hold", json!("holdApplicationUntilProxyStarts: false"), hook, json!([])),
        ("it holds", json!(null), json!({"lifecycle": {"postStart": exec(&["pilot-agent", "wait"])}}), json!([])),
        ("a native sidecar after the shim", json!(null), json!({}), json!([shim, sidecar("logs")])),
    ] {
        let mut one = pod.clone();
        if !hold.is_null() {
            one["metadata"]["annotations"][PROXY_CONFIG_ANNOTATION] = hold.clone();
        }
        let mut container = json!({"name": PROXY_CONTAINER, "image": payload_image()});
        merge(&mut container, &proxy);
        one["spec"]["containers"][1] = container;
        one["spec"]["initContainers"] = init;
        let [webhook, policy] = [dry_run(by_webhook, &one).await, dry_run(policed, &one).await];
        assert!(webhook.to_string().contains(SHIM_CONTAINER), "{case}: {webhook}");
        let mut containers = webhook["spec"]["containers"].as_array().expect("there are containers").iter();
        let is_held = containers.any(|container| container["lifecycle"]["postStart"].is_object());
        assert_eq!(is_held, !hold.to_string().contains("false"), "{case}: {webhook}");
        assert_eq!(diff(&webhook, &policy), json_patch::Patch::default(), "{case}");
    }
}

/// Options of an installation whose long-running pods are not held, whose image needs a Secret, and whose shim has the proxy's user.
const OPTIONS: [&str; 3] = ["--hold=completing", "--shim-pull-secret=registry", "--shim-user=proxy"];

#[tokio::test]
async fn policy_and_webhook_agree_on_options() {
    let [completing, long_running] =
        ["Never", "Always"].map(|policy| pod_of("one", &pod_spec(policy, &[shell("main", "true")])));
    let mut with_secret = completing.clone();
    with_secret["spec"]["imagePullSecrets"] = json!([{"name": "own"}]);
    let beside_root = annotated(completing.clone(), "sidecar.istio.io/interceptionMode", "TPROXY");
    let policed = &scenario("policy-options", &[MESH, by_policy("e2e-options")]).await;
    let by_webhook = &scenario("policy-options-webhook", &[MESH, OPT_IN]).await;
    let _options = WebhookOption::set(&OPTIONS);
    let _installed = install_policies("e2e-options", &OPTIONS);
    policed
        .until("the policy to be effective", async || {
            dry_run(policed, &completing).await.to_string().contains(SHIM_CONTAINER).then_some(())
        })
        .await;
    for (pod, secrets, is_held, user) in [
        (&completing, json!([{"name": "registry"}]), true, json!(1337)),
        (&with_secret, json!([{"name": "own"}, {"name": "registry"}]), true, json!(1337)),
        (&beside_root, json!([{"name": "registry"}]), true, json!(null)),
        (&long_running, json!(null), false, json!(null)),
    ] {
        let [webhook, policy] = [dry_run(by_webhook, pod).await, dry_run(policed, pod).await];
        assert_eq!(webhook["spec"]["imagePullSecrets"], secrets);
        assert_eq!(webhook.to_string().contains(HOLD_FIELD), is_held, "{webhook}");
        let mut containers = webhook["spec"]["initContainers"].as_array().into_iter().flatten();
        let shim = containers.find(|container| container["name"] == SHIM_CONTAINER);
        assert_eq!(shim.is_some(), is_held, "{webhook}");
        assert_eq!(shim.map_or(&json!(null), |shim| &shim["securityContext"]["runAsUser"]), &user, "{webhook}");
        assert_eq!(diff(&without_warnings(webhook, true), &policy), json_patch::Patch::default());
    }
}
