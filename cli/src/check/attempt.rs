//! Proves an installation: asks the API server, as a dry run, for a pod in namespaces that are opted in.

use anyhow::Result;
use api::describe_error;
use contract::names::{DISABLED, ENABLED, INJECTION_LABEL, ISTIO_INJECT, PROXY_CONTAINER, SHIM_CONTAINER, SHIM_UID};
use inject::Settings;
use inject::args::default_settings;
use kube::Client;
use serde_json::{Value, json};

use super::finding::{Finding, Id};
use super::snapshot::{Snapshot, webhook_service};
use crate::dry_run::{DryRun, dry_run_pod};
use crate::pods::{Decision, is_rendered, recorded};

/// Limits the namespaces in which a dry run is made.
const NAMESPACES_LIMIT: usize = 5;

/// Makes a dry run in namespaces that are opted in and in the mesh. Where no namespace is, it makes one in the context's, with a
/// pod that opts in by its labels.
pub(super) async fn run(
    client: &Client,
    snapshot: &Snapshot,
    checked: Option<&str>,
    settings: &Settings,
) -> Vec<Finding> {
    let mut pod = pod(settings);
    let selectors = snapshot.selectors();
    let namespaces = snapshot.namespaces.iter().filter(|namespace| selectors.opt_in_of_namespace(namespace).is_in());
    let in_mesh = namespaces.filter(|namespace| selectors.is_in_mesh(namespace));
    let mut names: Vec<&str> =
        in_mesh.filter_map(|namespace| namespace["metadata"]["name"].as_str()).take(NAMESPACES_LIMIT).collect();
    let has_webhook = snapshot.configurations.as_deref().and_then(webhook_service).is_some();
    if names.is_empty() && checked.is_none() && (snapshot.has_policy == Some(true) || has_webhook) {
        names.push(client.default_namespace());
        pod["metadata"]["labels"] = json!({INJECTION_LABEL: ENABLED, ISTIO_INJECT: "true"});
    }
    let mut findings = Vec::new();
    let mut without = pod.clone();
    without["metadata"]["labels"][INJECTION_LABEL] = json!(DISABLED);
    for name in names {
        let tried = dry_run_pod(client, name, &pod).await;
        let is_rejected = async |pod| matches!(dry_run_pod(client, name, pod).await, Ok(DryRun::Rejected(_)));
        findings.push(match tried {
            // As by a quota that is used up, or by another policy.
            Ok(DryRun::Rejected(message)) if !message.contains("istio-aux.io") && is_rejected(&without).await => {
                let message = format!(
                    "no verdict of the dry run in {name}: without istio-aux, too, the pod is rejected: {message}"
                );
                Finding::info(Id::DryRun, message)
            }
            tried => finding(name, tried),
        });
    }
    findings
}

fn finding(namespace: &str, dry_run: Result<DryRun>) -> Finding {
    match dry_run {
        Ok(DryRun::Admitted { pod, .. }) if has_lost_its_restart_policy(&pod) => Finding::problem(
            Id::DryRun,
            format!("dry run in {namespace}: the API server drops the shim's restartPolicy, so the pod never starts"),
            "the feature gate SidecarContainers is disabled: give the webhook --native-sidecars=disabled",
        ),
        Ok(DryRun::Admitted { pod, .. }) => match recorded(&pod) {
            Some(Decision { mode, reason, .. }) => {
                let what = "a pod that runs to completion gets mode";
                Finding::ok(Id::DryRun, format!("dry run in {namespace}: {what} {mode}: {reason}"))
            }
            None if is_rendered(&pod) => Finding::problem(
                Id::DryRun,
                format!("dry run in {namespace}: a pod that runs to completion gets istio-proxy and no shim"),
                "look for problems above, and at the webhook's log",
            ),
            None => Finding::info(
                Id::DryRun,
                format!("dry run in {namespace}: Istio's injector adds no istio-proxy, so the pod gets no shim"),
            ),
        },
        Ok(DryRun::Rejected(message)) => Finding::problem(
            Id::DryRun,
            format!("dry run in {namespace}: the pod is rejected: {message}"),
            format!("istio-aux check -n {namespace} KIND/NAME, for a workload of your own"),
        ),
        Ok(DryRun::Forbidden(message)) => Finding::info(Id::DryRun, format!("no dry run in {namespace}: {message}")),
        Err(error) => {
            let reason = describe_error(error.as_ref());
            Finding::info(Id::DryRun, format!("no verdict of the dry run in {namespace}: {reason}"))
        }
    }
}

/// Creates a pod for Istio's injector, as a dry run in the context's namespace, and reports the kind of its proxy.
pub(super) async fn kind_of_proxy(client: &Client) -> Finding {
    let mut pod = pod(&default_settings());
    pod["metadata"]["labels"] = json!({ISTIO_INJECT: "true"});
    let namespace = client.default_namespace();
    let dry_run = format!("dry run in {namespace}");
    match dry_run_pod(client, namespace, &pod).await {
        Ok(DryRun::Admitted { pod, .. }) => {
            let proxy_in = |list: &str| {
                let mut containers = pod["spec"][list].as_array().into_iter().flatten();
                containers.find(|container| container["name"] == PROXY_CONTAINER)
            };
            match (proxy_in("initContainers"), proxy_in("containers")) {
                (Some(proxy), _) if proxy["restartPolicy"] == "Always" => {
                    let end = "a native sidecar: pods that run to completion end without a shim";
                    Finding::info(Id::NativeSidecars, format!("{dry_run}: Istio makes its proxy {end}"))
                }
                (Some(_), _) => {
                    let end = "the API server drops the proxy's restartPolicy, so such a pod never starts";
                    Finding::info(Id::NativeSidecars, format!("{dry_run}: {end}"))
                }
                (None, Some(_)) => {
                    let end = "an ordinary container: without istio-aux, pods that run to completion hang";
                    Finding::ok(Id::NativeSidecars, format!("{dry_run}: Istio makes its proxy {end}"))
                }
                (None, None) => {
                    Finding::info(Id::NativeSidecars, format!("{dry_run}: Istio's injector adds no istio-proxy"))
                }
            }
        }
        Ok(DryRun::Rejected(reason) | DryRun::Forbidden(reason)) => {
            Finding::info(Id::NativeSidecars, format!("no {dry_run}: {reason}"))
        }
        Err(error) => Finding::info(Id::NativeSidecars, format!("no {dry_run}: {}", describe_error(error.as_ref()))),
    }
}

/// Returns true if the shim is an init container that the kubelet waits for. An API server without the feature gate
/// `SidecarContainers` drops the field after the webhooks have run.
fn has_lost_its_restart_policy(pod: &Value) -> bool {
    let init_containers = pod["spec"]["initContainers"].as_array();
    let shim = init_containers.into_iter().flatten().find(|container| container["name"] == SHIM_CONTAINER);
    shim.is_some_and(|shim| shim["restartPolicy"].is_null())
}

/// Returns a pod that meets Pod Security *restricted* and has what quotas ask for.
pub(super) fn pod(settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "istio-aux-check-"},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": settings.shim_image,
                "resources": {
                    "requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "16Mi"},
                },
                "securityContext": {
                    "runAsUser": SHIM_UID, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::fixtures::{labelled, stuck_pod};
    use api::fake::{Answer, client};

    fn namespace(name: &str, in_mesh: bool) -> Value {
        let injection = if in_mesh { "enabled" } else { "disabled" };
        labelled(name, &json!({"istio-aux.io/injection": "enabled", "istio-injection": injection}))
    }

    async fn findings(answers: impl IntoIterator<Item = Answer>) -> Vec<String> {
        let (client, _) = client(answers);
        let namespaces = vec![namespace("team", true), namespace("outside", false), json!({"metadata": {"name": "x"}})];
        let snapshot = Snapshot { namespaces, ..Snapshot::default() };
        let findings = run(&client, &snapshot, None, &Settings::new("shim:1")).await;
        findings.iter().map(Finding::line).collect()
    }

    #[tokio::test]
    async fn pod_opts_in_where_no_namespace_does() {
        const CREATE: &str = "POST /api/v1/namespaces/default/pods?&dryRun=All";
        let (client, requests) = client([Answer::ok(CREATE, json!({"metadata": {}}))]);
        let mut snapshot = Snapshot { namespaces: vec![json!({"metadata": {"name": "x"}})], ..Snapshot::default() };
        let settings = Settings::new("shim:1");
        assert!(run(&client, &snapshot, None, &settings).await.is_empty(), "istio-aux is not installed");
        snapshot.has_policy = Some(true);
        let findings = run(&client, &snapshot, None, &settings).await;
        let no_proxy = "dry run in default: Istio's injector adds no istio-proxy, so the pod gets no shim";
        assert_eq!(findings, [Finding::info(Id::DryRun, no_proxy)]);
        assert_eq!(requests.writes(), ["POST /api/v1/namespaces/default/pods"]);
    }

    #[tokio::test]
    async fn injector_says_which_kind_of_proxy_it_adds() {
        const CREATE: &str = "POST /api/v1/namespaces/default/pods?&dryRun=All";
        let with = |list: &str, policy: &Value| {
            let proxy = json!({"name": "istio-proxy", "restartPolicy": policy});
            Answer::ok(CREATE, json!({"metadata": {}, "spec": {list: [proxy]}}))
        };
        let cases = [
            (
                with("initContainers", &Value::Null),
                "info native-sidecars: dry run in default: the API server drops the proxy's restartPolicy",
            ),
            (
                with("initContainers", &json!("Always")),
                "info native-sidecars: dry run in default: Istio makes its proxy a native sidecar",
            ),
            (
                with("containers", &Value::Null),
                "ok native-sidecars: dry run in default: Istio makes its proxy an ordinary container",
            ),
            (
                Answer::ok(CREATE, json!({"metadata": {}})),
                "info native-sidecars: dry run in default: Istio's injector adds no istio-proxy",
            ),
            (
                Answer::forbidden(CREATE, "exceeded quota"),
                "info native-sidecars: no dry run in default: exceeded quota",
            ),
        ];
        for (answer, line) in cases {
            let (client, requests) = client([answer]);
            let finding = kind_of_proxy(&client).await;
            assert!(finding.line().starts_with(line), "{finding:?}");
            assert_eq!(requests.writes(), ["POST /api/v1/namespaces/default/pods"]);
        }
    }

    #[tokio::test]
    async fn dry_run_skips_namespaces_outside_the_mesh() {
        const CREATE: &str = "POST /api/v1/namespaces/team/pods?&dryRun=All";
        let status = r#"{"mode":"native","reason":"because"}"#;
        let injected = json!({"metadata": {"annotations": {"istio-aux.io/status": status}}});
        let dropped = json!({
            "metadata": {"annotations": {"istio-aux.io/status": status}},
            "spec": {"initContainers": [{"name": "aux-shim"}]},
        });
        let rights = "User \"me\" cannot create resource \"pods\" in API group";
        let cases = [
            (
                Answer::ok(CREATE, injected),
                "ok dry-run: dry run in team: a pod that runs to completion gets mode native: because",
            ),
            (
                Answer::ok(CREATE, stuck_pod()),
                "problem dry-run: dry run in team: a pod that runs to completion gets istio-proxy and no shim",
            ),
            (
                Answer::ok(CREATE, dropped),
                "problem dry-run: dry run in team: the API server drops the shim's restartPolicy, so the pod never starts",
            ),
            (
                Answer::ok(CREATE, json!({"metadata": {}})),
                "info dry-run: dry run in team: Istio's injector adds no istio-proxy, so the pod gets no shim",
            ),
            (
                Answer::forbidden(CREATE, rights),
                "info dry-run: no dry run in team: User \"me\" cannot create resource \"pods\" in API group",
            ),
        ];
        for (answer, line) in cases {
            assert_eq!(findings([answer]).await, [line]);
        }
        let rejected = || Answer::forbidden(CREATE, "exceeded quota");
        assert_eq!(
            findings([Answer::ok(CREATE, json!({"metadata": {}})).to("disabled"), rejected()]).await,
            ["problem dry-run: dry run in team: the pod is rejected: exceeded quota"]
        );
        let without = "info dry-run: no verdict of the dry run in team: without istio-aux, too, the pod is rejected: exceeded quota";
        assert_eq!(findings([rejected()]).await, [without]);
        let unreachable = "failed calling webhook \"require-shim.namespace.istio-aux.io\"";
        let answers = [rejected().to("disabled"), Answer::failure(CREATE, 500, unreachable)];
        assert!(findings(answers).await[0].starts_with("problem dry-run: dry run in team: the pod is rejected"));
    }
}
