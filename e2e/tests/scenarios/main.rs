//! Scenarios on the cluster of `KUBECONFIG`: what users suffer without istio-aux, and what they have with it.
//! Each test is a scenario in a namespace of its own; `control_` marks those that show the failure without istio-aux.

mod command;
mod completion;
mod customised;
mod gateways;
mod hostile;
mod kills;
mod liveness;
mod modes;
mod native_sidecars;
mod resilience;
mod restarts;
mod selection;
mod start;
mod training;

use contract::names::{PROXY_CONTAINER, SHIM_CONTAINER, SHIM_LABEL};
use e2e::{Namespace, PodView};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// A shell command that exits with 99 unless the proxy is ready. Containers end with it instead of comparing the times at which the
/// runtime says that they ended: a busy node's runtime notices ends in another order.
const NEEDS_PROXY: &str = "curl -sSf --max-time 5 -o /dev/null http://localhost:15021/healthz/ready || exit 99";

/// A container whose user may signal every process that it sees.
fn as_root(mut container: Value) -> Value {
    container["securityContext"] = json!({"runAsUser": 0});
    container
}

/// The modes with a shim that the installation has: a policy cannot wrap commands (docs/policy.md), and without native sidecars there
/// is no mode native. `hack/matrix` says so.
fn shim_modes() -> Vec<&'static str> {
    let mut modes = vec!["native", "proxy", "wrap"];
    modes.retain(|mode| match *mode {
        "native" => has_native_sidecars(),
        "wrap" => !by_policy(),
        _ => true,
    });
    modes
}

/// Whether a policy adds the shim, and no webhook.
fn by_policy() -> bool {
    std::env::var_os("BY_POLICY").is_some()
}

/// Whether the cluster has native sidecars.
fn has_native_sidecars() -> bool {
    std::env::var_os("NATIVE_SIDECARS").is_none_or(|value| value != "disabled")
}

/// The modes in which containers see each other's processes.
fn shared_pid_modes() -> Vec<&'static str> {
    let mut modes = shim_modes();
    modes.retain(|mode| *mode != "wrap");
    modes
}

/// The mode of pods that run to completion and ask for none.
fn default_mode() -> &'static str {
    shim_modes()[0]
}

/// The container in which the shim observes the others, in this mode.
fn shim_container(mode: &str) -> &'static str {
    if mode == "native" { SHIM_CONTAINER } else { PROXY_CONTAINER }
}

/// What the shim of a pod has logged.
async fn shim_log(ns: &Namespace, pod: &str) -> String {
    let mode = shim_label(&ns.pod(pod).await).unwrap_or_else(|| panic!("{pod} has a shim")).to_owned();
    ns.logs(pod, shim_container(&mode)).await
}

/// The mode in which the webhook added the shim.
fn shim_label(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(SHIM_LABEL).map(String::as_str)
}

/// Waits for the final phase of a pod.
async fn final_phase(ns: &Namespace, pod: &str) -> String {
    ns.pod_until(pod, "the end", |pod| PodView(pod).final_phase()).await
}

/// Creates the web server in the mesh and waits until it serves.
async fn start_server(ns: &Namespace) {
    for object in e2e::manifests::server() {
        ns.create_object(object).await;
    }
    let web = ns.until("the server's pod", || async { ns.pods_with("app=web").await.pop() }).await;
    let name = web.metadata.name.unwrap_or_default();
    ns.pod_until(&name, "readiness", |pod| PodView(pod).is_ready("web").then_some(())).await;
}
