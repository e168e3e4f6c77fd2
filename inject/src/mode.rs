//! In which way a pod's proxy is to be ended: what the pod asks for, and what works for it.

use contract::names::MODE_ANNOTATION;

use super::pod::Pod;
use super::{Settings, argo, katib};

/// What a decision added to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    None,
    /// Istio's hold annotation, at most.
    Hold,
    /// The annotation by which Istio makes its proxy a native sidecar.
    Istio,
    /// The shim, as a native sidecar.
    Native,
    /// The shim, as the parent of pilot-agent.
    Proxy,
    /// The shim, as the parent of each awaited container's command, and of pilot-agent.
    Wrap,
}

/// How the shim's binary gets into containers that are not its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// An init container copies it into an emptyDir.
    Copy,
    /// The shim's image is mounted: Kubernetes 1.35 with containerd 2.1 or CRI-O, and later.
    ImageVolume,
}

/// What a pod asks for by its annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Whatever works.
    Auto,
    /// This mode.
    Mode(Mode),
}

/// The way that was chosen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) mode: Mode,
    pub(super) why: &'static str,
    pub(super) warning: Option<String>,
}

impl Delivery {
    /// The name that operators use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::ImageVolume => "image-volume",
        }
    }
}

impl Mode {
    const ALL: [Self; 6] = [Self::None, Self::Hold, Self::Istio, Self::Native, Self::Proxy, Self::Wrap];

    /// The name in status, labels and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hold => "hold",
            Self::Istio => "istio",
            Self::Native => "native",
            Self::Proxy => "proxy",
            Self::Wrap => "wrap",
        }
    }

    /// Whether a shim is in the pod.
    #[must_use]
    pub fn has_shim(self) -> bool {
        matches!(self, Self::Native | Self::Proxy | Self::Wrap)
    }
}

/// Reads what a pod asks for. What cannot be read is `auto`, with a warning.
pub(super) fn wanted(pod: &Pod, warnings: &mut Vec<String>) -> Wanted {
    match pod.annotation(MODE_ANNOTATION).as_deref() {
        None | Some("auto") => Wanted::Auto,
        Some("off") => Wanted::Mode(Mode::None),
        Some(text) => {
            let mode = Mode::ALL.into_iter().find(|mode| *mode != Mode::None && mode.as_str() == text);
            if mode.is_none() {
                warnings.push(format!(
                    "{MODE_ANNOTATION}: {text:?} is taken for auto: it takes auto, native, proxy, wrap, istio, hold or off"
                ));
            }
            mode.map_or(Wanted::Auto, Wanted::Mode)
        }
    }
}

/// Chooses the way for a pod that has an ordinary istio-proxy and is to complete.
pub(super) fn choose(wanted: Wanted, pod: &Pod, awaited: &[String], settings: &Settings) -> Choice {
    let obstacles = Obstacles::of(pod, awaited, settings);
    let works = obstacles.what_works(settings);
    let Wanted::Mode(asked) = wanted else { return works };
    let Some(obstacle) = obstacles.to(asked) else {
        return Choice { mode: asked, why: "the pod asks for it, by istio-aux.io/mode", warning: None };
    };
    let instead = works.warning.unwrap_or_else(|| format!("instead it is {}", works.mode.as_str()));
    let warning = format!("{MODE_ANNOTATION}: {} is not possible here, as {obstacle}; {instead}", asked.as_str());
    Choice { warning: Some(warning), ..works }
}

/// What stands against modes in a pod.
struct Obstacles {
    /// Against a native shim.
    native: Option<&'static str>,
    /// Against a PID namespace that the containers share.
    sharing: Option<&'static str>,
    /// Against wrapping.
    wrapping: Option<String>,
}

impl Obstacles {
    fn of(pod: &Pod, awaited: &[String], settings: &Settings) -> Self {
        let commandless: Vec<&str> = awaited.iter().map(String::as_str).filter(|name| !pod.has_command(name)).collect();
        let wrapping = if commandless.is_empty() {
            // A trial's collector looks for the training by its command line and its PID.
            katib::is_trial(pod).then(|| "Katib's collector would not find a wrapped training".to_owned())
        } else {
            let names = commandless.join(", ");
            Some(format!("these containers have no command of their own that could be wrapped: {names}"))
        };
        let sharing = if argo::is_step(pod) {
            Some("Argo Workflows signals PID 1 of each container")
        } else if pod.spec.share_process_namespace == Some(false) {
            Some("shareProcessNamespace is false")
        } else {
            None
        };
        let native = (!settings.native_sidecars).then_some("the server has no native sidecars");
        Self { native, sharing, wrapping }
    }

    fn to(&self, mode: Mode) -> Option<&str> {
        match mode {
            Mode::Native => self.native.or(self.sharing),
            Mode::Proxy => self.sharing,
            Mode::Wrap => self.wrapping.as_deref(),
            Mode::Istio => Some("Istio's injector has made istio-proxy an ordinary container"),
            Mode::Hold | Mode::None => None,
        }
    }

    fn what_works(&self, settings: &Settings) -> Choice {
        const ORDINARY: &str = "istio-proxy is an ordinary container in a pod that is to complete";
        let of = |mode, why| Choice { mode, why, warning: None };
        match (self.sharing, &self.wrapping) {
            (None, _) if self.native.is_some() => of(Mode::Proxy, "the server has no native sidecars"),
            (None, _) if settings.delivery == Delivery::ImageVolume => of(Mode::Proxy, ORDINARY),
            (None, _) => of(Mode::Native, ORDINARY),
            (Some(why), None) => of(Mode::Wrap, why),
            (Some(why), Some(obstacle)) => {
                let warning = format!("istio-aux adds no shim, and this pod will not complete: {why}, and {obstacle}");
                Choice { warning: Some(warning), ..of(Mode::Hold, why) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// What is chosen for a pod whose container `main` has a command, and the start of the warning.
    fn chosen(mode: &str, change: (&str, Value), settings: &Settings) -> (Mode, Option<String>) {
        let mut pod = json!({
            "metadata": {"annotations": {MODE_ANNOTATION: mode}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "command": ["true"]}, {"name": "istio-proxy"}]},
        });
        pod["spec"]["shareProcessNamespace"] = Value::Null;
        if let Some(field) = pod["spec"].pointer_mut(change.0) {
            *field = change.1;
        }
        let text = pod.to_string();
        let pod: Pod = serde_json::from_str(&text).unwrap();
        let mut warnings = Vec::new();
        let choice = choose(wanted(&pod, &mut warnings), &pod, &["main".to_owned()], settings);
        warnings.extend(choice.warning);
        (choice.mode, warnings.pop())
    }

    fn by_image() -> Settings {
        Settings { delivery: Delivery::ImageVolume, ..settings() }
    }

    fn settings() -> Settings {
        Settings::new("shim:1")
    }

    fn old_server() -> Settings {
        Settings { native_sidecars: false, ..settings() }
    }

    const AS_IS: (&str, Value) = ("/none", Value::Null);
    const APART: (&str, Value) = ("/shareProcessNamespace", Value::Bool(false));
    const COMMANDLESS: (&str, Value) = ("/containers/0/command", Value::Null);

    #[test]
    fn what_works_is_chosen() {
        let cases = [
            ("auto", AS_IS, settings(), Mode::Native),
            ("auto", AS_IS, old_server(), Mode::Proxy),
            ("auto", AS_IS, by_image(), Mode::Proxy),
            ("auto", APART, settings(), Mode::Wrap),
            ("native", AS_IS, by_image(), Mode::Native),
            ("proxy", AS_IS, settings(), Mode::Proxy),
            ("proxy", COMMANDLESS, settings(), Mode::Proxy),
            ("wrap", AS_IS, settings(), Mode::Wrap),
            ("hold", AS_IS, settings(), Mode::Hold),
        ];
        for (mode, change, settings, expected) in cases {
            assert_eq!(chosen(mode, change.clone(), &settings), (expected, None), "{mode} {change:?}");
        }
    }

    #[test]
    fn what_does_not_work_is_said_and_replaced() {
        let no_command = "these containers have no command of their own that could be wrapped: main";
        let cases = [
            ("native", AS_IS, old_server(), Mode::Proxy, "the server has no native sidecars"),
            ("native", APART, settings(), Mode::Wrap, "shareProcessNamespace is false"),
            ("proxy", APART, settings(), Mode::Wrap, "shareProcessNamespace is false"),
            ("wrap", COMMANDLESS, settings(), Mode::Native, no_command),
            ("istio", AS_IS, settings(), Mode::Native, "Istio's injector has made istio-proxy an ordinary container"),
        ];
        for (mode, change, settings, instead, reason) in cases {
            let warning = format!(
                "istio-aux.io/mode: {mode} is not possible here, as {reason}; instead it is {}",
                instead.as_str()
            );
            assert_eq!(chosen(mode, change.clone(), &settings), (instead, Some(warning)), "{mode} {change:?}");
        }
    }

    #[test]
    fn steps_of_workflows_are_wrapped_and_trials_are_not() {
        let chosen = |label: &str, mode: &str| {
            let containers = json!([{"name": "main", "command": ["true"]}, {"name": "istio-proxy"}]);
            let metadata = json!({"labels": {label: "x"}, "annotations": {MODE_ANNOTATION: mode}});
            let pod = json!({"metadata": metadata, "spec": {"shareProcessNamespace": true, "containers": containers}})
                .to_string();
            let pod: Pod = serde_json::from_str(&pod).unwrap();
            choose(wanted(&pod, &mut Vec::new()), &pod, &["main".to_owned()], &settings()).mode
        };
        let (argo, katib) = ("workflows.argoproj.io/workflow", "katib.kubeflow.org/trial");
        let cases = [
            (argo, "auto", Mode::Wrap),
            (argo, "native", Mode::Wrap),
            (katib, "auto", Mode::Native),
            (katib, "proxy", Mode::Proxy),
            (katib, "wrap", Mode::Native),
        ];
        for (label, mode, expected) in cases {
            assert_eq!(chosen(label, mode), expected, "{label} {mode}");
        }
    }

    #[test]
    fn what_is_no_mode_is_said_and_taken_for_auto() {
        let warning =
            "istio-aux.io/mode: \"whatever\" is taken for auto: it takes auto, native, proxy, wrap, istio, hold or off";
        assert_eq!(chosen("whatever", AS_IS, &settings()), (Mode::Native, Some(warning.to_owned())));
    }

    #[test]
    fn where_nothing_works_the_start_is_held_and_that_is_said() {
        let pod = json!({"spec": {"shareProcessNamespace": false, "containers": [{"name": "main"}]}}).to_string();
        let pod: Pod = serde_json::from_str(&pod).unwrap();
        let choice = choose(Wanted::Auto, &pod, &["main".to_owned()], &settings());
        assert_eq!(choice.mode, Mode::Hold);
        let warning = choice.warning.unwrap();
        assert!(warning.contains("this pod will not complete: shareProcessNamespace is false, and"), "{warning}");
        assert!(warning.ends_with(": main"), "{warning}");
    }
}
