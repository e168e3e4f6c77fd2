//! The rules by which pods get a plan. Each has its rows in `tests/cases.yaml`.

use contract::args::WatchArgs;
use contract::names::{
    DISABLED, INJECTION_LABEL, NATIVE_SIDECAR_ANNOTATION, NODE_RUNTIME_CLASS, PROXY_CONFIG_ANNOTATION, SHIM_LABEL,
    STATUS_ANNOTATION,
};
use contract::policy::RestartPolicy;
use serde::Serialize;

use super::hold::{self, HoldEdit};
use super::warnings::Warnings;
use super::{Change, Plan, argo, katib, mode, quit, resources, restarts, wait_for};
use crate::facts::{Facts, Sidecar};
use crate::{Mode, Settings};

const NO_STATUS_PORT: &str = "the proxy's status port cannot be read, so the shim could not end it";
const OPTED_OUT_BY_LABEL: &str = "the pod opted out, by its label istio-aux.io/injection";
const GATEWAY: &str = "the pod is a gateway or waypoint of Istio";
const OPTED_OUT_BY_MODE: &str = "the pod opted out, by istio-aux.io/mode";

/// Returns why the pod would hang with an ordinary istio-proxy; `None` if the shim or the kubelet ends the proxy.
pub(crate) fn reason_without_shim(facts: &Facts, settings: &Settings) -> Option<&'static str> {
    if facts.pod.label(INJECTION_LABEL) == Some(DISABLED) {
        return Some(OPTED_OUT_BY_LABEL);
    }
    if facts.sidecar == Sidecar::Gateway {
        return Some(GATEWAY);
    }
    if let Some(reason) = unsupported_reason(facts) {
        return Some(reason);
    }
    if facts.pod.status_port().is_none() {
        return Some(NO_STATUS_PORT);
    }
    let mut warnings = Warnings::default();
    let requested = mode::requested(facts.pod, &mut warnings);
    match requested {
        Some(Mode::Off) => return Some(OPTED_OUT_BY_MODE),
        Some(Mode::Istio) if settings.native_sidecars => return None,
        Some(_) | None => {}
    }
    let (mode, reason) = mode::choose(requested, facts, settings, &mut warnings);
    (!mode.has_shim()).then_some(reason)
}

/// Plans the changes of a pod. The plan for a pod that was changed as planned changes nothing.
pub(crate) fn plan(facts: &Facts, settings: &Settings) -> Plan {
    if facts.pod.label(INJECTION_LABEL) == Some(DISABLED) {
        return Plan::unchanged(OPTED_OUT_BY_LABEL);
    }
    if facts.sidecar == Sidecar::Gateway {
        return Plan::unchanged(GATEWAY);
    }
    if facts.payload.is_empty() {
        return Plan::unchanged("the pod has no container but istio-proxy");
    }
    if let Some(reason) = unsupported_reason(facts) {
        return unsupported(facts, reason);
    }
    let mut plan = Plan::unchanged("");
    let requested = mode::requested(facts.pod, &mut plan.warnings);
    if requested == Some(Mode::Off) {
        return Plan::unchanged(OPTED_OUT_BY_MODE);
    }
    let outcome = match facts.sidecar {
        Sidecar::None | Sidecar::Customised if facts.pod.istio_injection() == Some("false") => {
            if facts.pod.spec.runtime_class() == Some(NODE_RUNTIME_CLASS) {
                return Plan::unchanged("the pod uses the proxy on its node");
            }
            return unsupported(facts, "Istio's injection is disabled, by sidecar.istio.io/inject");
        }
        Sidecar::None | Sidecar::Customised | Sidecar::Gateway => {
            before_injector(facts, requested, settings, &mut plan)
        }
        Sidecar::Native => {
            katib::change_trial(facts, settings, &mut plan);
            Outcome::Final(Mode::Off, "istio-proxy is a native sidecar, which the kubelet ends")
        }
        Sidecar::Classic { .. } => {
            katib::change_trial(facts, settings, &mut plan);
            hold_start(facts, settings, &mut plan);
            match facts.restart_policy {
                Some(policy) => end_proxy(facts, policy, requested, settings, &mut plan),
                None => Outcome::Hold("restartPolicy Always: the pod does not run to completion"),
            }
        }
    };
    plan.conclude(facts, outcome)
}

/// The outcome of a decision.
enum Outcome {
    /// No rendered proxy yet, or a pod that does not run to completion.
    Hold(&'static str),
    /// Istio's injector is asked for a native sidecar.
    AskedIstio,
    /// The pod has the shim already, but maybe not its label: `kubectl debug --copy-to` removes labels.
    Present(Mode),
    /// The pod gets no shim, and a status that says why.
    Final(Mode, &'static str),
    /// The pod gets the shim.
    Shim(Mode, &'static str, Box<WatchArgs>, Option<super::ResourceRequirements>),
}

impl Plan {
    fn conclude(mut self, facts: &Facts, outcome: Outcome) -> Self {
        let awaited = if let Outcome::Shim(_, _, watch, _) = &outcome { &*watch.awaited } else { &[] };
        let has_warnings = !self.warnings.is_empty();
        let (mode, reason, has_status) = match &outcome {
            Outcome::Hold(reason) => (Mode::Hold, *reason, has_warnings),
            Outcome::AskedIstio => (Mode::Istio, "the pod asks for it, by istio-aux.io/mode", has_warnings),
            Outcome::Present(mode) => (*mode, "the shim is in the pod already", false),
            Outcome::Final(mode, reason) | Outcome::Shim(mode, reason, ..) => (*mode, *reason, true),
        };
        (self.mode, self.reason) = (mode, reason);
        if has_status {
            self.add_status(awaited);
        }
        if let Outcome::Shim(mode, ..) | Outcome::Present(mode) = &outcome {
            self.changes.push(Change::Label { key: SHIM_LABEL, value: mode.as_str() });
        }
        if let Outcome::Shim(_, _, watch, resources) = outcome {
            self.changes.push(Change::Shim { watch, resources });
            argo::disable_argo_proxy_kill(facts, &mut self);
        }
        self
    }

    /// Adds the status annotation: this plan in one line of JSON.
    fn add_status(&mut self, awaited: &[String]) {
        #[derive(Serialize)]
        #[serde(rename_all = "kebab-case")]
        struct Status<'a> {
            version: &'a str,
            mode: &'a str,
            wait_for: &'a [String],
            reason: &'a str,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            warnings: &'a [String],
        }
        let (mode, warnings) = (self.mode.as_str(), self.warnings.to_vec());
        let version = env!("CARGO_PKG_VERSION");
        let status = Status { version, mode, wait_for: awaited, reason: self.reason, warnings: &warnings };
        // Strings and lists of strings can always be serialized.
        let value = serde_json::to_string(&status).unwrap_or_default();
        self.changes.push(Change::Annotation { key: STATUS_ANNOTATION, value });
    }
}

/// Returns the plan for a pod that is unchanged for this reason, which its warning and status name.
fn unsupported(facts: &Facts, reason: &'static str) -> Plan {
    let mut plan = Plan::unchanged(reason);
    plan.warnings.push(format_args!("istio-aux: pod left unchanged: {reason}"));
    if facts.restart_policy.is_some() {
        plan.add_status(&[]);
    }
    plan
}

fn unsupported_reason(facts: &Facts) -> Option<&'static str> {
    let spec = &facts.pod.spec;
    if spec.host_network == Some(true) {
        Some("hostNetwork pods get no Istio sidecar")
    } else if spec.is_windows() {
        Some("Windows pods get no Istio sidecar")
    } else {
        facts.pod.excess()
    }
}

fn before_injector(facts: &Facts, requested: Option<Mode>, settings: &Settings, plan: &mut Plan) -> Outcome {
    hold_start(facts, settings, plan);
    if requested == Some(Mode::Istio) && settings.native_sidecars {
        // The user's own setting stands.
        if facts.pod.annotation(NATIVE_SIDECAR_ANNOTATION).is_none() {
            plan.changes.push(Change::Annotation { key: NATIVE_SIDECAR_ANNOTATION, value: "true".to_owned() });
        }
        return Outcome::AskedIstio;
    }
    Outcome::Hold(match facts.sidecar {
        Sidecar::Customised => "Istio's injector has not rendered the pod's istio-proxy (yet)",
        _ => "istio-proxy is not in the pod (yet)",
    })
}

/// Adds the startup hold, unless the user has set it: the payload starts when the proxy is ready. A proxy that the injector
/// has rendered without its hook is changed as the injector would have done; with `global.proxy.lifecycle`, Istio renders that
/// in place of the hook.
fn hold_start(facts: &Facts, settings: &Settings, plan: &mut Plan) {
    // The hold asks the status port.
    if !settings.hold.applies_to(facts.restart_policy) || facts.pod.status_port() == Some(0) {
        return;
    }
    match hold::edit(facts.pod.annotation(PROXY_CONFIG_ANNOTATION)) {
        Ok(HoldEdit::AlreadySet(true)) => {}
        Ok(HoldEdit::AlreadySet(false)) => return,
        Ok(HoldEdit::Set(value)) => plan.changes.push(Change::Annotation { key: PROXY_CONFIG_ANNOTATION, value }),
        Err(reason) => {
            plan.warnings.push(format_args!(
                "istio-aux cannot add holdApplicationUntilProxyStarts to the annotation {PROXY_CONFIG_ANNOTATION}: {reason}"
            ));
            return;
        }
    }
    if let Some((index, proxy)) = facts.classic_proxy() {
        let has_hook = proxy.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some());
        // A command of its own may not be pilot-agent.
        if !has_hook && proxy.command.is_none() {
            plan.changes.push(Change::HoldAtProxy { index });
        }
    }
}

/// Plans the end of the proxy of a pod that runs to completion.
fn end_proxy(
    facts: &Facts,
    policy: RestartPolicy,
    requested: Option<Mode>,
    settings: &Settings,
    plan: &mut Plan,
) -> Outcome {
    if let Some(mode) = facts.present {
        return Outcome::Present(mode);
    }
    let Some(status_port) = facts.pod.status_port() else {
        plan.warnings.push(format_args!("istio-aux adds no shim, and this pod will not complete: {NO_STATUS_PORT}"));
        return Outcome::Final(Mode::Hold, NO_STATUS_PORT);
    };
    let awaited = wait_for::awaited(facts, &mut plan.warnings);
    let (mode, reason) = mode::choose(requested, facts, settings, &mut plan.warnings);
    if !mode.has_shim() {
        return Outcome::Final(mode, reason);
    }
    let watch = WatchArgs {
        may_restart: restarts::may_restart(facts, &awaited, policy, &mut plan.warnings),
        all_may_restart: restarts::all_may_restart(facts),
        report_only: mode == Mode::Status,
        status_port,
        quit: quit::endpoints(facts.pod, &mut plan.warnings),
        ..WatchArgs::new(awaited.iter().map(|container| container.name.clone()).collect(), policy)
    };
    let resources = resources::for_shim(facts, &settings.resources, &mut plan.warnings);
    Outcome::Shim(mode, reason, Box::new(watch), resources)
}
