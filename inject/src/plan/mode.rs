//! Chooses the mode: the one that the pod requests, or else the best that works for it.

use std::collections::HashSet;

use contract::names::MODE_ANNOTATION;

use super::Warnings;
use super::warnings::Names;
use crate::facts::Facts;
use crate::facts::pod::Pod;
use crate::{Delivery, Mode, Settings};

/// The mode that a pod requests by its annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedMode {
    /// The best that works.
    Auto,
    /// This mode.
    This(Mode),
}

/// The mode that was chosen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModeChoice {
    pub(super) mode: Mode,
    pub(super) reason: &'static str,
}

/// Returns the mode of the pod's annotation. An unknown one counts as `auto`, with a warning.
pub(super) fn requested(pod: &Pod, warnings: &mut Warnings) -> RequestedMode {
    let Some(text) = pod.annotation(MODE_ANNOTATION).filter(|text| *text != "auto") else { return RequestedMode::Auto };
    Mode::ALL.into_iter().find(|mode| mode.as_str() == text).map_or_else(
        || {
            warnings.push(format_args!(
                "{MODE_ANNOTATION}: invalid value {text:?}, using auto; use auto, native, proxy, wrap, istio, hold or off"
            ));
            RequestedMode::Auto
        },
        RequestedMode::This,
    )
}

/// Chooses the mode for a pod that runs to completion with an ordinary istio-proxy.
pub(super) fn choose(
    requested: RequestedMode,
    facts: &Facts,
    awaited: &[String],
    settings: &Settings,
    warnings: &mut Warnings,
) -> ModeChoice {
    let constraints = ModeConstraints::of(facts, awaited, settings);
    let best = constraints.best_available(settings);
    let RequestedMode::This(mode) = requested else {
        if best.mode == Mode::Hold {
            warnings.push(format_args!("{}", constraints.nothing_works()));
        }
        return best;
    };
    let Some(obstacle) = constraints.against(mode) else {
        return ModeChoice { mode, reason: "the pod asks for it, by istio-aux.io/mode" };
    };
    let refused = format!("{MODE_ANNOTATION}: {} is not possible here, as {obstacle}", mode.as_str());
    if best.mode == Mode::Hold {
        warnings.push(format_args!("{refused}; {}", constraints.nothing_works()));
    } else {
        warnings.push(format_args!("{refused}; instead it is {}", best.mode.as_str()));
    }
    best
}

/// The reasons that rule modes out in a pod.
struct ModeConstraints {
    /// While another native sidecar runs, the kubelet takes a pod whose native shim has exited for one that is still
    /// starting, and ends it 16 s to more than 60 s later.
    has_other_native_sidecars: bool,
    /// Rules out a native sidecar.
    native: Option<&'static str>,
    /// Rules out a shared PID namespace.
    sharing: Option<&'static str>,
    /// Rules out wrapped commands.
    wrapping: Option<String>,
}

impl ModeConstraints {
    fn of(facts: &Facts, awaited: &[String], settings: &Settings) -> Self {
        let is_sandboxed = facts.pod.spec.is_sandboxed();
        let with_command: HashSet<&str> =
            facts.payload.iter().filter(|container| container.has_command()).map(|c| c.name.as_str()).collect();
        let without_command: Vec<&str> =
            awaited.iter().map(String::as_str).filter(|name| !with_command.contains(name)).collect();
        let wrapping = if is_sandboxed {
            // gVisor mounts a volume separately for each container, and a lock holds within one mount (gvisor#11326).
            // Kata mounts another directory where a mount has a subPath (kata-containers#12218).
            Some("it does not share file locks between containers".to_owned())
        } else if !without_command.is_empty() {
            let names = Names(&without_command);
            Some(format!("these containers have no command of their own that could be wrapped: {names}"))
        } else if facts.is_katib_trial {
            // The collector looks for the training by its command line and its PID.
            Some("Katib's collector would not find a wrapped training".to_owned())
        } else {
            None
        };
        let sharing = if is_sandboxed {
            Some("its runtime class (gVisor or Kata) does not show containers in a shared PID namespace")
        // Katib shares the namespace in each trial, a workflow's, too.
        } else if facts.is_argo_step && facts.pod.spec.share_process_namespace != Some(true) {
            Some("Argo Workflows signals PID 1 of each container")
        } else if facts.pod.spec.share_process_namespace == Some(false) {
            Some("shareProcessNamespace is false")
        } else {
            None
        };
        let native = (!settings.native_sidecars).then_some("the server has no native sidecars");
        Self { has_other_native_sidecars: facts.has_other_native_sidecars, native, sharing, wrapping }
    }

    fn against(&self, mode: Mode) -> Option<&str> {
        match mode {
            Mode::Native => self.native.or(self.sharing),
            Mode::Proxy => self.sharing,
            Mode::Wrap => self.wrapping.as_deref(),
            Mode::Istio => Some("Istio's injector has made istio-proxy an ordinary container"),
            Mode::Hold | Mode::Off => None,
        }
    }

    fn best_available(&self, settings: &Settings) -> ModeChoice {
        const ORDINARY: &str = "istio-proxy is an ordinary container in a pod that runs to completion";
        const SIDECARS: &str =
            "the pod has native sidecars of its own, which the kubelet ends sooner without another one";
        let (mode, reason) = match (self.sharing, &self.wrapping) {
            (None, _) if self.native.is_some() => (Mode::Proxy, "the server has no native sidecars"),
            (None, _) if self.has_other_native_sidecars => (Mode::Proxy, SIDECARS),
            (None, _) if settings.delivery != Delivery::Copy => (Mode::Proxy, ORDINARY),
            (None, _) => (Mode::Native, ORDINARY),
            (Some(reason), None) => (Mode::Wrap, reason),
            (Some(reason), Some(_)) => (Mode::Hold, reason),
        };
        ModeChoice { mode, reason }
    }

    /// Returns the warning for a pod in which no mode with a shim works.
    fn nothing_works(&self) -> String {
        let (sharing, wrapping) = (self.sharing.unwrap_or_default(), self.wrapping.as_deref().unwrap_or_default());
        format!("istio-aux adds no shim, and this pod will not complete: {sharing}, and {wrapping}")
    }
}
