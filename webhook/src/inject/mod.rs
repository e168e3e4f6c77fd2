//! What istio-aux does to a pod: pure decisions over a partial view of it, given back as a JSON Patch.
//!
//! The API server calls the webhook twice for most pods: before Istio's injector (there is no proxy yet, and the hold
//! annotation still tells the injector what to do) and again after it (there is one, and the shim is added).

mod awaited;
mod hold;
mod patch;
pub mod pod;
mod restarts;
mod shim;

use contract::args::Watch;
use contract::endpoint::Endpoint;
use contract::names::{
    DISABLED, INJECTION_LABEL, ISTIO_INJECT, PROXY_CONFIG_ANNOTATION, QUIT_ANNOTATION, SHIM_LABEL, STATUS_ANNOTATION,
    VOLUME, WAIT_FOR_ANNOTATION,
};
use contract::policy::{ContainerPolicy, RestartPolicy};
use json_patch::Patch;
use serde_json::json;

use self::hold::Hold;
use self::patch::PatchWriter;
use self::pod::{Pod, Proxy};

/// What the operator chose for the whole installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The shim's image, with its registry and tag.
    pub shim_image: String,
}

/// What a decision added to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    None,
    /// Istio's hold annotation, at most.
    Hold,
    /// The shim, as a native sidecar.
    Native,
}

impl Mode {
    /// The name in status, labels and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hold => "hold",
            Self::Native => "native",
        }
    }
}

/// What to do with a pod, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What changes; empty where nothing does.
    pub patch: Patch,
    /// What the pod has of ours once the patch is applied.
    pub mode: Mode,
    /// The reason, for the log and the status annotation.
    pub why: &'static str,
    /// For whoever creates the pod by hand.
    pub warnings: Vec<String>,
}

/// Decides for a pod. Deciding again on the patched pod changes nothing.
#[must_use]
pub fn decide(pod: &Pod, settings: &Settings) -> Decision {
    if pod.label(INJECTION_LABEL) == Some(DISABLED) {
        return leave("the pod opted out by its label", Vec::new());
    }
    if let Some(why) = out_of_reach(pod) {
        return leave(why, vec![format!("istio-aux leaves this pod as it is: {why}")]);
    }
    let mut write = PatchWriter::new(pod);
    let mut warnings = Vec::new();
    match pod.proxy() {
        Proxy::Native => {
            let why = "istio-proxy is a native sidecar, which the kubelet ends";
            write_status(&mut write, Mode::None, &[], why);
            Decision { patch: write.finish(), mode: Mode::None, why, warnings }
        }
        Proxy::Absent if is_told_not_to_inject(pod) => {
            let why = "Istio is told not to inject, by sidecar.istio.io/inject";
            leave(why, vec![format!("istio-aux leaves this pod as it is: {why}")])
        }
        Proxy::Absent => {
            hold_start(pod, &mut write, &mut warnings);
            Decision { patch: write.finish(), mode: Mode::Hold, why: "istio-proxy is not in the pod (yet)", warnings }
        }
        Proxy::Classic => {
            hold_start(pod, &mut write, &mut warnings);
            let (mode, why) = end_proxy(pod, settings, &mut write, &mut warnings);
            Decision { patch: write.finish(), mode, why, warnings }
        }
    }
}

fn leave(why: &'static str, warnings: Vec<String>) -> Decision {
    Decision { patch: Patch::default(), mode: Mode::None, why, warnings }
}

/// Why a pod can have no shim that would see its containers, if so.
fn out_of_reach(pod: &Pod) -> Option<&'static str> {
    let spec = &pod.spec;
    if spec.host_pid == Some(true) {
        Some("hostPID shows every process of the node, not the pod's")
    } else if spec.host_network == Some(true) {
        Some("hostNetwork pods get no Istio sidecar")
    } else if spec.is_windows() {
        Some("Windows pods get no Istio sidecar")
    } else {
        None
    }
}

/// Istio asks the label first, and the annotation where there is none.
fn is_told_not_to_inject(pod: &Pod) -> bool {
    pod.label(ISTIO_INJECT).or_else(|| pod.annotation(ISTIO_INJECT)) == Some("false")
}

/// Tells Istio's injector to hold the payload until the proxy is ready, unless the user has said otherwise.
fn hold_start(pod: &Pod, write: &mut PatchWriter, warnings: &mut Vec<String>) {
    if pod.status_port() == Some(0) {
        // The hold asks a port that would never answer.
        return;
    }
    match hold::plan(pod.annotation(PROXY_CONFIG_ANNOTATION)) {
        Hold::Said => {}
        Hold::Write(value) => write.annotation(PROXY_CONFIG_ANNOTATION, &value),
        Hold::Unreadable(reason) => warnings.push(format!(
            "istio-aux cannot add holdApplicationUntilProxyStarts to the annotation {PROXY_CONFIG_ANNOTATION}: {reason}"
        )),
    }
}

/// Adds what ends a classic proxy, where the pod can complete at all.
fn end_proxy(
    pod: &Pod,
    settings: &Settings,
    write: &mut PatchWriter,
    warnings: &mut Vec<String>,
) -> (Mode, &'static str) {
    let Some(policy) = pod.spec.restart_policy() else {
        return (Mode::Hold, "restartPolicy Always: the pod is not to complete");
    };
    if pod.has_shim() {
        return (Mode::Native, "the shim is in the pod already");
    }
    if pod.spec.share_process_namespace == Some(false) {
        let why = "shareProcessNamespace is false, so the shim could not see the containers";
        warnings.push(format!("istio-aux adds no shim, and this pod will not complete: {why}"));
        write_status(write, Mode::Hold, &[], why);
        return (Mode::Hold, why);
    }
    let Some(status_port) = pod.status_port() else {
        let why = "the proxy's status port cannot be read, so the shim could not end it";
        warnings.push(format!("istio-aux adds no shim, and this pod will not complete: {why}"));
        write_status(write, Mode::Hold, &[], why);
        return (Mode::Hold, why);
    };
    let awaited = awaited::split(pod);
    warnings.extend(awaited.warnings);
    if awaited.names.is_empty() {
        return (Mode::Hold, "the pod has no container but the proxy");
    }
    let why = "istio-proxy is an ordinary container in a pod that is to complete";
    write_status(write, Mode::Native, &awaited.names, why);
    write.label(SHIM_LABEL, Mode::Native.as_str());
    let watch = Watch {
        outlived: awaited.others,
        container_policies: container_policies(pod, policy, warnings),
        status_port,
        quit: quit_endpoints(pod, warnings),
        state: Some(shim::state_file()),
        ..Watch::new(awaited.names, policy)
    };
    write.init_container(shim::native_sidecar(&watch, &settings.shim_image));
    if !pod.has_volume(VOLUME) {
        write.volume(shim::volume());
    }
    write.share_process_namespace();
    (Mode::Native, why)
}

/// The restart policies of the regular containers that have their own, the proxy's too.
fn container_policies(pod: &Pod, policy: RestartPolicy, warnings: &mut Vec<String>) -> Vec<(String, ContainerPolicy)> {
    let mut policies = Vec::new();
    for container in &pod.spec.containers {
        let name = container.name.as_str();
        match restarts::own_policy(container, policy) {
            Ok(None) => {}
            Ok(Some(own)) => policies.push((name.to_owned(), own)),
            Err(unknown) => {
                warnings
                    .push(format!("istio-aux goes by the pod's restartPolicy for container {name}: unknown {unknown}"));
            }
        }
    }
    policies
}

/// What the pod wants told to quit before the proxy. Anything but plain HTTP on loopback is refused.
fn quit_endpoints(pod: &Pod, warnings: &mut Vec<String>) -> Vec<Endpoint> {
    let list = pod.annotation(QUIT_ANNOTATION).unwrap_or_default();
    let mut endpoints = Vec::new();
    for url in list.split(',').map(str::trim).filter(|url| !url.is_empty()) {
        match url.parse() {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => warnings.push(format!("{QUIT_ANNOTATION}: {url:?} is left out: it {error}")),
        }
    }
    if !endpoints.is_empty() && pod.annotation(WAIT_FOR_ANNOTATION).is_none() {
        warnings.push(format!(
            "{QUIT_ANNOTATION} without {WAIT_FOR_ANNOTATION}: the container that it ends is waited for, so it is never asked"
        ));
    }
    endpoints
}

/// One line of JSON on the pod that says what was decided and why.
fn write_status(write: &mut PatchWriter, mode: Mode, awaited: &[String], why: &str) {
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"), "mode": mode.as_str(), "wait-for": awaited, "why": why,
    });
    write.annotation(STATUS_ANNOTATION, &status.to_string());
}
