//! Katib's metrics collectors find the training among the processes of the pod, pilot-agent and the shim among them.

use contract::names::{ISTIO_INJECT, KATIB_COLLECTOR_OPTION, KATIB_COMPLETED_MARKER};

use super::{Change, Plan, resources};
use crate::facts::Facts;
use crate::facts::pod::Container;
use crate::settings::Settings;

/// The spellings of the collector's option to wait for all processes.
const WAIT_ALL: [&str; 3] = ["w", "wait_all", "wait_all_processes"];

/// Changes a trial so that its collectors end, in every mode and with native sidecars.
pub(super) fn change_trial(facts: &Facts, settings: &Settings, plan: &mut Plan) {
    if facts.is_katib_trial {
        disable_wait_all_processes(facts, plan);
        start_training_after_collector(facts, settings, plan);
    }
}

/// Adds the option by which Katib's collectors do not wait for every process that they see (katib#1383, katib#2614), unless the user
/// has set it.
fn disable_wait_all_processes(facts: &Facts, plan: &mut Plan) {
    for (index, container) in facts.pod.spec.containers.iter().enumerate() {
        if is_collector(container) && !sets_wait_all(container) {
            plan.changes.push(Change::Args { index, words: &["-w", "false"] });
        }
    }
}

/// Delays the training until its collector has started. A collector looks for Katib's marker once, at its own start. If the training
/// has ended by then, or lacks the marker, it awaits another container (`GetMainProcesses` in Katib's `pns.go` and `pns.py`).
fn start_training_after_collector(facts: &Facts, settings: &Settings, plan: &mut Plan) {
    let spec = &facts.pod.spec;
    let sees_collector = spec.share_process_namespace == Some(true) && !spec.is_sandboxed();
    if facts.restart_policy.is_none() || !sees_collector || !spec.containers.iter().any(is_collector) {
        return;
    }
    let has_marker = |container: &Container| args(container).any(|arg| arg.contains(KATIB_COMPLETED_MARKER));
    if !spec.containers.iter().any(has_marker) {
        plan.warnings.push(format_args!(
            "no container has Katib's mark of a training, so its collector will wait for istio-proxy or the shim, and the pod not end; \
             next: label the trial's pods {ISTIO_INJECT}=false"
        ));
    }
    let is_training = |container: &Container| {
        let is_delayed = container.is_run_by_shim(contract::args::START_AFTER);
        !is_delayed && container.has_command() && has_marker(container)
    };
    let trainings = spec.containers.iter().enumerate().filter(|(_, container)| is_training(container));
    let mut trainings = trainings.map(|(index, _)| index).peekable();
    if trainings.peek().is_some() {
        let resources = resources::for_shim(facts, &settings.resources, &mut plan.warnings);
        plan.changes.extend(trainings.map(|index| Change::StartAfterCollector { index, resources: resources.clone() }));
    }
}

fn args(container: &Container) -> impl Iterator<Item = &str> {
    container.args.iter().flatten().map(String::as_str)
}

fn is_collector(container: &Container) -> bool {
    args(container).any(|arg| arg == KATIB_COLLECTOR_OPTION)
}

fn sets_wait_all(container: &Container) -> bool {
    args(container).any(|arg| {
        let option = arg.split('=').next().unwrap_or_default();
        option.starts_with('-') && WAIT_ALL.contains(&option.trim_start_matches('-'))
    })
}
