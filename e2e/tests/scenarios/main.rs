//! Scenarios on the cluster of `KUBECONFIG`: what users suffer without istio-aux, and what they have with it.
//! Each test is a scenario in a namespace of its own; `control_` marks those that show the failure without istio-aux.

#[cfg(feature = "clients")]
mod airflow;
mod argo;
#[cfg(feature = "clients")]
mod clients;
mod command;
mod completion;
mod customised;
#[cfg(feature = "clients")]
mod dagster;
#[cfg(feature = "clients")]
mod dask;
mod gateways;
mod hostile;
mod katib;
mod kills;
#[cfg(feature = "one-node")]
mod kubelet;
mod last_words;
mod liveness;
mod modes;
mod native_sidecars;
#[cfg(feature = "clients")]
mod ray;
mod resilience;
mod restart_rules;
mod selection;
#[cfg(feature = "clients")]
mod spark;
mod start;

use contract::names::{PROXY_CONTAINER, SHIM_CONTAINER};
use e2e::manifests::NEEDS_PROXY;
use e2e::{Namespace, PodView};
use serde_json::{Value, json};

/// The endpoint of pilot-agent that the shim asks.
const PILOT_AGENT: &str = "http://127.0.0.1:15020/quitquitquit";

/// Returns a script whose first attempt waits to be killed, and whose second one ends by itself and needs the proxy. Its pod has the
/// directory of `with_memory`.
fn ended_once_by_the_kubelet() -> String {
    format!("[ -e /memory/once ] && {{ sleep 3; {NEEDS_PROXY}; exit; }}; touch /memory/once; sleep 1000")
}

/// Waits until the first attempt of such a container has said that it is the first.
async fn until_first_attempt(ns: &Namespace, pod: &str) {
    ns.pod_until(pod, "main's start", |pod| PodView(pod).runs("main").then_some(())).await;
    let has_said = async || ns.try_exec(pod, "main", &["test", "-e", "/memory/once"]).status.success().then_some(());
    ns.until("main's first words", has_said).await;
}

/// Lets a container's user signal every process that it sees.
fn as_root(mut container: Value) -> Value {
    container["securityContext"] = json!({"runAsUser": 0});
    container
}

/// Returns the modes with a shim that the installation has: without native sidecars there is no mode native. `hack/matrix` says so.
fn shim_modes() -> Vec<&'static str> {
    let mut modes = vec!["native", "proxy", "status"];
    modes.retain(|mode| *mode != "native" || has_native_sidecars());
    modes
}

/// Returns true if a policy adds the shim, and not a webhook.
fn by_policy() -> bool {
    std::env::var_os("BY_POLICY").is_some()
}

/// Returns true if the cluster has native sidecars.
fn has_native_sidecars() -> bool {
    !std::env::var("FEATURE_GATES").is_ok_and(|gates| gates.contains("SidecarContainers=false"))
}

/// Returns the modes in which containers see each other's processes.
fn shared_pid_modes() -> Vec<&'static str> {
    let mut modes = shim_modes();
    modes.retain(|mode| *mode != "status");
    modes
}

/// Returns the mode of pods that run to completion and ask for none.
fn default_mode() -> &'static str {
    shim_modes()[0]
}

/// Returns the container that runs the shim in this mode.
fn shim_container(mode: &str) -> &'static str {
    if mode != "proxy" && has_native_sidecars() { SHIM_CONTAINER } else { PROXY_CONTAINER }
}

/// Returns the log of a pod's shim.
async fn shim_log(ns: &Namespace, pod: &str) -> String {
    let with_shim = ns.pod(pod).await;
    let mode = PodView(&with_shim).shim_mode().unwrap_or_else(|| panic!("{pod} has a shim"));
    ns.logs(pod, shim_container(mode)).await
}

/// Creates the web server in the mesh and waits until it serves.
async fn start_server(ns: &Namespace) {
    ns.create_objects(e2e::manifests::server()).await;
    ns.until_a_pod("app=web", "readiness", |pod| pod.is_ready("web")).await;
    // Until istiod has told of the pod, proxies answer with 503.
    let ask = ["curl", "-sSf", "--max-time", "5", "http://web/"];
    let is_answered = async || ns.try_exec("deployment/web", "web", &ask).status.success().then_some(());
    ns.until("an answer through the mesh", is_answered).await;
}
