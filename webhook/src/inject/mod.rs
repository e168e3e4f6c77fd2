//! What istio-aux does to a pod: pure decisions over a partial view of it, given back as a JSON Patch.
//!
//! The API server calls the webhook twice for most pods: before Istio's injector (there is no proxy yet, and the hold
//! annotation still tells the injector what to do) and again after it (there is one, and the shim is added).

mod awaited;
mod hold;
mod mode;
mod patch;
pub mod pod;
mod restarts;
mod shim;
mod ways;

use contract::args::{SUPERVISE, WRAP, Watch};
use contract::endpoint::Endpoint;
use contract::names::{
    DISABLED, INJECTION_LABEL, ISTIO_INJECT, NATIVE_SIDECAR_ANNOTATION, PILOT_AGENT, PROXY_CONFIG_ANNOTATION,
    QUIT_ANNOTATION, SHIM_LABEL, STATUS_ANNOTATION, WAIT_FOR_ANNOTATION,
};
use contract::policy::{ContainerPolicy, RestartPolicy};
use json_patch::Patch;
use serde_json::json;

use self::hold::Hold;
use self::mode::{Choice, Wanted};
pub use self::mode::{Delivery, Mode};
use self::patch::PatchWriter;
use self::pod::{Pod, Proxy};

/// What the operator chose for the whole installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The shim's image, with its registry and tag.
    pub shim_image: String,
    /// How the shim's binary gets into containers that are not its own.
    pub delivery: Delivery,
    /// Whether the server keeps `restartPolicy` on init containers (KEP-753).
    pub native_sidecars: bool,
    /// What istio-proxy runs where its container has no command.
    pub proxy_command: String,
}

impl Settings {
    /// The defaults, with this image of the shim.
    #[must_use]
    pub fn new(shim_image: &str) -> Self {
        Self {
            shim_image: shim_image.to_owned(),
            delivery: Delivery::Copy,
            native_sidecars: true,
            proxy_command: PILOT_AGENT.to_owned(),
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
    let mut warnings = Vec::new();
    let wanted = mode::wanted(pod, &mut warnings);
    if wanted == Wanted::Mode(Mode::None) {
        return leave("the pod opted out, by istio-aux.io/mode", warnings);
    }
    let mut write = PatchWriter::new(pod);
    let (mode, why) = match pod.proxy() {
        Proxy::Native => {
            let why = "istio-proxy is a native sidecar, which the kubelet ends";
            write_status(&mut write, Mode::None, &[], why);
            (Mode::None, why)
        }
        Proxy::Absent if is_told_not_to_inject(pod) => {
            let why = "Istio is told not to inject, by sidecar.istio.io/inject";
            return leave(why, vec![format!("istio-aux leaves this pod as it is: {why}")]);
        }
        Proxy::Absent => {
            hold_start(pod, &mut write, &mut warnings);
            if wanted == Wanted::Mode(Mode::Istio) {
                ask_for_native_proxy(pod, &mut write)
            } else {
                (Mode::Hold, "istio-proxy is not in the pod (yet)")
            }
        }
        Proxy::Classic => {
            hold_start(pod, &mut write, &mut warnings);
            end_proxy(pod, wanted, settings, &mut write, &mut warnings)
        }
    };
    Decision { patch: write.finish(), mode, why, warnings }
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

/// The way in which the shim is in the pod already. By its structure: annotations are copied with pods.
fn present(pod: &Pod) -> Option<Mode> {
    let is_run = |subcommand| pod.spec.containers.iter().any(|container| container.is_run_by_shim(subcommand));
    if pod.has_native_shim() {
        Some(Mode::Native)
    } else if is_run(SUPERVISE) {
        Some(if is_run(WRAP) { Mode::Wrap } else { Mode::Proxy })
    } else {
        None
    }
}

/// Has Istio's injector, which is still to come, make its proxy a native sidecar. What the user said of that stands.
fn ask_for_native_proxy(pod: &Pod, write: &mut PatchWriter) -> (Mode, &'static str) {
    if pod.annotation(NATIVE_SIDECAR_ANNOTATION).is_none() {
        write.annotation(NATIVE_SIDECAR_ANNOTATION, "true");
    }
    (Mode::Istio, "the pod asks for it, by istio-aux.io/mode")
}

/// Adds what ends a classic proxy, where the pod can complete at all.
fn end_proxy(
    pod: &Pod,
    wanted: Wanted,
    settings: &Settings,
    write: &mut PatchWriter,
    warnings: &mut Vec<String>,
) -> (Mode, &'static str) {
    let Some(policy) = pod.spec.restart_policy() else {
        return (Mode::Hold, "restartPolicy Always: the pod is not to complete");
    };
    if let Some(mode) = present(pod) {
        return (mode, "the shim is in the pod already");
    }
    let awaited = awaited::split(pod);
    if awaited.names.is_empty() {
        return (Mode::Hold, "the pod has no container but the proxy");
    }
    warnings.extend(awaited.warnings);
    let Some(status_port) = pod.status_port() else {
        let why = "the proxy's status port cannot be read, so the shim could not end it";
        warnings.push(format!("istio-aux adds no shim, and this pod will not complete: {why}"));
        write_status(write, Mode::Hold, &[], why);
        return (Mode::Hold, why);
    };
    let Choice { mode, why, warning } = mode::choose(wanted, pod, &awaited.names, settings);
    warnings.extend(warning);
    if !mode.has_shim() {
        write_status(write, mode, &[], why);
        return (mode, why);
    }
    write_status(write, mode, &awaited.names, why);
    write.label(SHIM_LABEL, mode.as_str());
    let watch = Watch {
        outlived: awaited.others,
        container_policies: container_policies(pod, policy, warnings),
        status_port,
        quit: quit_endpoints(pod, warnings),
        ..Watch::new(awaited.names, policy)
    };
    match mode {
        Mode::Wrap => ways::wrap(pod, watch, settings, write),
        Mode::Proxy => ways::proxy(pod, watch, settings, write),
        _ => ways::native(watch, settings, write),
    }
    (mode, why)
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
