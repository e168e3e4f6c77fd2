//! What istio-aux does to a pod: pure decisions over a partial view of it, given back as a JSON Patch.
//!
//! The API server calls the webhook twice for most pods: before Istio's injector (there is no proxy yet, and the hold
//! annotation still tells the injector what to do) and again after it (there is one, and the shim is added).
//!
//! [`decide`] decides; [`review`] speaks the admission API around it. A package of its own, since it is what is built for speed.

#![forbid(unsafe_code)]

mod argo;
mod awaited;
mod document;
mod hold;
mod katib;
mod mode;
mod patch;
pub mod pod;
mod quit;
mod resources;
mod restarts;
pub mod review;
mod shim;
mod ways;

use std::borrow::Cow;

use contract::args::{SUPERVISE, WRAP, Watch};
use contract::names::{
    DISABLED, INJECTION_LABEL, ISTIO_INJECT, NATIVE_SIDECAR_ANNOTATION, PILOT_AGENT, PROXY_CONFIG_ANNOTATION,
    SHIM_LABEL, STATUS_ANNOTATION,
};
use serde::Serialize;

use self::hold::Hold;
use self::mode::{Choice, Wanted};
pub use self::mode::{Delivery, Mode};
pub use self::patch::Patch;
use self::patch::PatchWriter;
use self::pod::{Pod, Proxy};

/// What the operator chose for the whole installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The shim's image, with its registry and tag.
    pub shim_image: String,
    /// When the node pulls that image. Where the server insists on `Always` (`AlwaysPullImages`), so must this: what is
    /// added in a reinvocation is not defaulted, but refused.
    pub pull_policy: PullPolicy,
    /// How the shim's binary gets into containers that are not its own.
    pub delivery: Delivery,
    /// Whether the server keeps `restartPolicy` on init containers (KEP-753).
    pub native_sidecars: bool,
    /// What istio-proxy runs where its container has no command.
    pub proxy_command: String,
    /// What the shim's containers ask of the node.
    pub resources: ShimResources,
}

/// What the shim's containers ask of the node. `LimitRanger` fills nothing in for what is added in a reinvocation, and refuses
/// what is outside a namespace's bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShimResources {
    /// Quantities by the name of their resource.
    pub requests: Vec<(String, String)>,
    /// The same.
    pub limits: Vec<(String, String)>,
}

impl Default for ShimResources {
    fn default() -> Self {
        let quantities = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, quantity)| ((*name).to_owned(), (*quantity).to_owned())).collect()
        };
        // CRI-O refuses memory limits under 12 MiB.
        Self { requests: quantities(&[("cpu", "1m"), ("memory", "4Mi")]), limits: quantities(&[("memory", "16Mi")]) }
    }
}

/// `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Where the node has not got it.
    IfNotPresent,
    /// For every container.
    Always,
    /// Never: the node has it.
    Never,
}

impl PullPolicy {
    /// The name Kubernetes uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

impl Settings {
    /// The defaults, with this image of the shim.
    #[must_use]
    pub fn new(shim_image: &str) -> Self {
        Self {
            shim_image: shim_image.to_owned(),
            pull_policy: PullPolicy::IfNotPresent,
            delivery: Delivery::Copy,
            native_sidecars: true,
            proxy_command: PILOT_AGENT.to_owned(),
            resources: ShimResources::default(),
        }
    }
}

/// What to do with a pod, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    if pod.proxy() == Proxy::Absent && is_told_not_to_inject(pod) {
        let why = "Istio is told not to inject, by sidecar.istio.io/inject";
        return leave(why, vec![format!("istio-aux leaves this pod as it is: {why}")]);
    }
    Deciding { pod, settings, wanted, write: PatchWriter::new(pod), warnings }.decide()
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
    let said = pod.label(ISTIO_INJECT).map(Cow::Borrowed).or_else(|| pod.annotation(ISTIO_INJECT));
    said.is_some_and(|said| said == "false")
}

/// What the status annotation says.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Status<'a> {
    version: &'a str,
    mode: &'a str,
    wait_for: &'a [String],
    why: &'a str,
}

/// A decision that is being made.
struct Deciding<'p> {
    pod: &'p Pod<'p>,
    settings: &'p Settings,
    wanted: Wanted,
    write: PatchWriter<'p>,
    warnings: Vec<String>,
}

impl Deciding<'_> {
    fn decide(mut self) -> Decision {
        let (mode, why) = match self.pod.proxy() {
            Proxy::Native => {
                katib::let_collectors_end(self.pod, &mut self.write);
                let why = "istio-proxy is a native sidecar, which the kubelet ends";
                self.write_status(Mode::None, &[], why);
                (Mode::None, why)
            }
            Proxy::Absent => {
                self.hold_start();
                if self.wanted == Wanted::Mode(Mode::Istio) {
                    self.ask_for_native_proxy()
                } else {
                    (Mode::Hold, "istio-proxy is not in the pod (yet)")
                }
            }
            Proxy::Classic => {
                katib::let_collectors_end(self.pod, &mut self.write);
                self.hold_start();
                self.end_proxy()
            }
        };
        Decision { patch: self.write.finish(), mode, why, warnings: self.warnings }
    }

    /// Tells Istio's injector to hold the payload until the proxy is ready, unless the user has said otherwise. Where the
    /// proxy is there already, and was not told, it is made to hold as the injector would have.
    fn hold_start(&mut self) {
        if self.pod.status_port() == Some(0) {
            // The hold asks a port that would never answer.
            return;
        }
        match hold::plan(self.pod.annotation(PROXY_CONFIG_ANNOTATION).as_deref()) {
            Hold::Said => {}
            Hold::Write(value) => {
                self.write.annotation(PROXY_CONFIG_ANNOTATION, &value);
                ways::hold(self.pod, &mut self.write);
            }
            Hold::Unreadable(reason) => self.warnings.push(format!(
                "istio-aux cannot add holdApplicationUntilProxyStarts to the annotation {PROXY_CONFIG_ANNOTATION}: {reason}"
            )),
        }
    }

    /// Has Istio's injector, which is still to come, make its proxy a native sidecar. What the user said of that stands.
    fn ask_for_native_proxy(&mut self) -> (Mode, &'static str) {
        if self.pod.annotation(NATIVE_SIDECAR_ANNOTATION).is_none() {
            self.write.annotation(NATIVE_SIDECAR_ANNOTATION, "true");
        }
        (Mode::Istio, "the pod asks for it, by istio-aux.io/mode")
    }

    /// Adds what ends a classic proxy, where the pod can complete at all.
    fn end_proxy(&mut self) -> (Mode, &'static str) {
        let Some(policy) = self.pod.spec.restart_policy() else {
            return (Mode::Hold, "restartPolicy Always: the pod is not to complete");
        };
        if let Some(mode) = present(self.pod) {
            return (mode, "the shim is in the pod already");
        }
        let awaited = awaited::split(self.pod);
        if awaited.names.is_empty() {
            return (Mode::Hold, "the pod has no container but the proxy");
        }
        self.warnings.extend(awaited.warnings);
        let Some(status_port) = self.pod.status_port() else {
            let why = "the proxy's status port cannot be read, so the shim could not end it";
            self.warnings.push(format!("istio-aux adds no shim, and this pod will not complete: {why}"));
            self.write_status(Mode::Hold, &[], why);
            return (Mode::Hold, why);
        };
        let Choice { mode, why, warning } = mode::choose(self.wanted, self.pod, &awaited.names, self.settings);
        self.warnings.extend(warning);
        if !mode.has_shim() {
            self.write_status(mode, &[], why);
            return (mode, why);
        }
        self.write_status(mode, &awaited.names, why);
        self.write.label(SHIM_LABEL, mode.as_str());
        let watch = Watch {
            outlived: awaited.others,
            container_policies: restarts::own_policies(self.pod, policy, &mut self.warnings),
            status_port,
            quit: quit::endpoints(self.pod, &mut self.warnings),
            ..Watch::new(awaited.names, policy)
        };
        match mode {
            Mode::Wrap => ways::wrap(self.pod, watch, self.settings, &mut self.write),
            Mode::Proxy => ways::proxy(self.pod, watch, self.settings, &mut self.write),
            _ => ways::native(self.pod, watch, self.settings, &mut self.write),
        }
        if argo::is_step(self.pod) {
            argo::leave_the_proxy_to_us(self.pod, &mut self.write);
        }
        (mode, why)
    }

    /// One line of JSON on the pod that says what was decided and why.
    fn write_status(&mut self, mode: Mode, awaited: &[String], why: &str) {
        let status = Status { version: env!("CARGO_PKG_VERSION"), mode: mode.as_str(), wait_for: awaited, why };
        // Texts and a list of them can always be written.
        let status = serde_json::to_string(&status).unwrap_or_default();
        self.write.annotation(STATUS_ANNOTATION, &status);
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
