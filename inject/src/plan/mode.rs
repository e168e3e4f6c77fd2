//! Chooses the mode: the one that the pod requests, or else the best that works for it.

use contract::names::MODE_ANNOTATION;

use super::Warnings;
use crate::facts::Facts;
use crate::facts::pod::Pod;
use crate::{Delivery, Mode, Settings};

/// Returns the mode of the pod's annotation; `None` stands for `auto`, the best that works. An unknown one counts as `auto`,
/// with a warning.
pub(super) fn requested(pod: &Pod, warnings: &mut Warnings) -> Option<Mode> {
    let text = pod.annotation(MODE_ANNOTATION).filter(|text| *text != "auto")?;
    let mode = Mode::ALL.into_iter().find(|mode| mode.as_str() == text);
    if mode.is_none() {
        warnings.push(format_args!(
            "{MODE_ANNOTATION}: invalid value {text:?}, using auto; use auto, native, proxy, status, istio, hold or off"
        ));
    }
    mode
}

/// Chooses the mode for a pod that runs to completion with an ordinary istio-proxy, and returns it with its reason.
pub(super) fn choose(
    requested: Option<Mode>,
    facts: &Facts,
    settings: &Settings,
    warnings: &mut Warnings,
) -> (Mode, &'static str) {
    let constraints = ModeConstraints::of(facts, settings);
    let best = constraints.best_available(settings);
    let Some(mode) = requested else { return best };
    let Some(obstacle) = constraints.against(mode) else {
        return (mode, "the pod asks for it, by istio-aux.io/mode");
    };
    let (refused, instead) = (mode.as_str(), best.0.as_str());
    warnings.push(format_args!(
        "{MODE_ANNOTATION}: {refused} is not possible here, as {obstacle}; instead it is {instead}"
    ));
    best
}

/// The reasons that rule modes out in a pod.
struct ModeConstraints {
    /// Rules out a native sidecar.
    native: Option<&'static str>,
    /// Rules out a shared PID namespace.
    sharing: Option<&'static str>,
}

impl ModeConstraints {
    fn of(facts: &Facts, settings: &Settings) -> Self {
        let sharing = if facts.pod.spec.host_pid == Some(true) {
            Some("hostPID shows every process of the node, not the pod's")
        } else if facts.pod.spec.is_sandboxed() {
            Some("its runtime class (gVisor or Kata) does not show containers in a shared PID namespace")
        // Katib shares the namespace in each trial, a workflow's, too.
        } else if facts.is_argo_step && facts.pod.spec.share_process_namespace != Some(true) {
            Some("Argo Workflows signals PID 1 of each container")
        } else if facts.has_airflow_xcom && facts.pod.spec.share_process_namespace != Some(true) {
            Some("Airflow ends its XCom sidecar by signals to the processes of one container")
        } else if facts.pod.spec.share_process_namespace == Some(false) {
            Some("shareProcessNamespace is false")
        } else {
            None
        };
        let native = (!settings.native_sidecars).then_some("the server has no native sidecars");
        Self { native, sharing }
    }

    fn against(&self, mode: Mode) -> Option<&'static str> {
        match mode {
            Mode::Native => self.native.or(self.sharing),
            Mode::Proxy => self.sharing,
            Mode::Istio => self.native.or(Some("Istio's injector has made istio-proxy an ordinary container")),
            Mode::Status | Mode::Hold | Mode::Off => None,
        }
    }

    fn best_available(&self, settings: &Settings) -> (Mode, &'static str) {
        const ORDINARY: &str = "the pod runs to completion, and its istio-proxy would not end by itself";
        match self.sharing {
            Some(reason) => (Mode::Status, reason),
            None if settings.prefers_status => (Mode::Status, "the installation asks for it, by --default-mode"),
            None if self.native.is_some() => (Mode::Proxy, "the server has no native sidecars"),
            None if settings.delivery != Delivery::Copy => (Mode::Proxy, ORDINARY),
            None => (Mode::Native, ORDINARY),
        }
    }
}
