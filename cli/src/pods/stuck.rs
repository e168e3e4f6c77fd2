//! Finds pods that only their proxy keeps running. Pure.

use anyhow::{Context, Result, bail};
use contract::names::PROXY_CONTAINER;
use inject::has_ended_for_good;
use inject::pod::Pod;
use serde_json::Value;

use super::decision::parse;

/// Holds a pod whose containers have all ended for good, except the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StuckPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Is the port of pilot-agent; 0 if it is switched off.
    pub(crate) status_port: u16,
    /// Is the time at which the last of these containers ended, in RFC 3339.
    pub(crate) since: String,
}

/// Checks one pod. `Err` says why it is not stuck.
pub(crate) fn check_stuck(pod: &Value) -> Result<StuckPod> {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        bail!("it has ended ({phase})");
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        bail!("it is being deleted");
    }
    let policy = pod["spec"]["restartPolicy"].as_str().unwrap_or("Always");
    if policy == "Always" {
        bail!("its restartPolicy is Always: it does not run to completion");
    }
    if !matches!(policy, "Never" | "OnFailure") {
        bail!("its restartPolicy {policy} is not known: its containers may be started again");
    }
    let containers: Vec<&Value> = pod["spec"]["containers"].as_array().into_iter().flatten().collect();
    if !containers.iter().any(|container| is_proxy(container)) {
        bail!("it has no ordinary container {PROXY_CONTAINER}");
    }
    if containers.iter().all(|container| is_proxy(container)) {
        bail!("it has no container beside its {PROXY_CONTAINER}");
    }
    let parsed = parse(pod).context("it cannot be read")?;
    let mut since = String::new();
    for container in containers {
        let name = container["name"].as_str().unwrap_or_default();
        let state = state_of(pod, name);
        if is_proxy(container) {
            if state["running"].is_null() {
                bail!("its {PROXY_CONTAINER} does not run");
            }
            continue;
        }
        since = since.max(end_of(&parsed, name, state)?);
    }
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let status_port = parsed.status_port().context("its status port cannot be read")?;
    Ok(StuckPod { namespace: text("namespace"), name: text("name"), uid: text("uid"), status_port, since })
}

/// Returns when a container ended. `Err` if it still runs, or the kubelet may start it again.
fn end_of(pod: &Pod, name: &str, state: &Value) -> Result<String> {
    let ended = &state["terminated"];
    if ended.is_null() {
        let what = match (state["running"].is_null(), state["waiting"]["reason"].as_str()) {
            (false, _) => "still runs",
            (true, Some("CrashLoopBackOff")) => "will be started again",
            (true, _) => "has not started yet",
        };
        bail!("its container {name} {what}");
    }
    if !has_ended_for_good(pod, name) {
        bail!("its container {name} may be started again (exit code {})", ended["exitCode"]);
    }
    Ok(ended["finishedAt"].as_str().unwrap_or_default().to_owned())
}

/// Returns true if a container is Istio's proxy.
pub(crate) fn is_proxy(container: &Value) -> bool {
    container["name"] == PROXY_CONTAINER
}

fn state_of<'p>(pod: &'p Value, name: &str) -> &'p Value {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let status = statuses.into_iter().flatten().find(|status| status["name"] == name);
    status.map_or(&Value::Null, |status| &status["state"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::fixtures::{stuck_pod, stuck_pod_with};
    use serde_json::json;

    const MAIN: &str = "/status/containerStatuses/0/state";
    const PROXY: &str = "/status/containerStatuses/1/state";

    fn ended(code: i64) -> Value {
        json!({"terminated": {"exitCode": code}})
    }

    /// Returns a stuck pod with this restart policy, and another field changed.
    fn pod(policy: &str, pointer: &str, value: Value) -> Value {
        let mut pod = stuck_pod_with(pointer, value);
        pod["spec"]["restartPolicy"] = json!(policy);
        pod
    }

    #[test]
    fn pod_is_stuck_if_only_its_proxy_runs() {
        let runs = || json!({"running": {}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let cases = [
            (stuck_pod(), "stuck"),
            (pod("Never", MAIN, ended(1)), "stuck"),
            (pod("OnFailure", MAIN, ended(0)), "stuck"),
            (pod("OnFailure", MAIN, ended(1)), "its container main may be started again (exit code 1)"),
            (
                pod("Never", MAIN, json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})),
                "its container main may be started again (exit code 137)",
            ),
            (
                pod("Never", "/status/conditions", json!([{"type": "AllContainersRestarting", "status": "True"}])),
                "its container main may be started again (exit code 0)",
            ),
            (
                pod("Never", "/metadata/annotations", json!({"status.sidecar.istio.io/port": "ninety"})),
                "its status port cannot be read",
            ),
            (pod("Never", MAIN, runs()), "its container main still runs"),
            (pod("Never", MAIN, waiting("")), "its container main has not started yet"),
            (pod("OnFailure", MAIN, waiting("CrashLoopBackOff")), "its container main will be started again"),
            (pod("Never", PROXY, ended(0)), "its istio-proxy does not run"),
            (pod("Always", PROXY, runs()), "its restartPolicy is Always: it does not run to completion"),
            (
                pod(
                    "Never",
                    "/spec/containers/1/restartPolicyRules",
                    json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}}]),
                ),
                "its container main may be started again (exit code 0)",
            ),
            (pod("Never", "/spec/containers/1/restartPolicyRules", json!([{}])), "it cannot be read"),
            (pod("Never", "/status/phase", json!("Succeeded")), "it has ended (Succeeded)"),
            (pod("Never", "/metadata/deletionTimestamp", json!("now")), "it is being deleted"),
            (pod("Never", "/spec/containers/0/name", json!("x")), "it has no ordinary container istio-proxy"),
            (
                pod("Never", "/spec/containers", json!([{"name": "istio-proxy"}])),
                "it has no container beside its istio-proxy",
            ),
            (pod("Once", MAIN, ended(0)), "its restartPolicy Once is not known: its containers may be started again"),
        ];
        for (pod, expected) in cases {
            let result = check_stuck(&pod).map_or_else(|error| error.to_string(), |_| "stuck".to_owned());
            assert_eq!(result, expected, "{pod}");
        }
    }

    #[test]
    fn stuck_pod_has_its_status_port() {
        let expected = StuckPod {
            namespace: "team".to_owned(),
            name: "hello".to_owned(),
            uid: "1f".to_owned(),
            status_port: 15020,
            since: "2026-11-21T10:00:00Z".to_owned(),
        };
        assert_eq!(check_stuck(&stuck_pod()).unwrap(), expected);
        let moved = stuck_pod_with("/metadata/annotations", json!({"status.sidecar.istio.io/port": "15999"}));
        assert_eq!(check_stuck(&moved).unwrap().status_port, 15999);
    }
}
