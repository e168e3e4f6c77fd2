//! Katib's metrics collectors wait for every process that they see, pilot-agent and the shim among them, and so for ever
//! (katib#1383, katib#2614), unless they are told not to.

use contract::names::{KATIB_COLLECTORS, KATIB_TRIAL_LABEL};

use super::patch::PatchWriter;
use super::pod::{Container, Pod, Text};

/// The collector's option that says whether it waits for all processes, with and without its long name and value.
const WAIT_ALL: [&str; 3] = ["w", "wait_all", "wait_all_processes"];
/// An option that only Katib's own collectors have: where they report to.
const REPORTS_TO: &str = "-s-db";

/// Whether a pod is one of Katib's trials.
pub(super) fn is_trial(pod: &Pod) -> bool {
    pod.label(KATIB_TRIAL_LABEL).is_some()
}

/// Tells a trial's collectors to wait for the training alone, unless the user said for what.
pub(super) fn let_collectors_end(pod: &Pod, write: &mut PatchWriter) {
    if !is_trial(pod) {
        return;
    }
    for (index, container) in pod.spec.containers.iter().enumerate() {
        if is_collector(container) && !says_what_to_wait_for(container) {
            write.args(index, &["-w", "false"]);
        }
    }
}

fn args<'c>(container: &'c Container) -> impl Iterator<Item = &'c str> {
    container.args.iter().flatten().map(Text::as_str)
}

fn is_collector(container: &Container) -> bool {
    KATIB_COLLECTORS.contains(&container.name.as_str()) || args(container).any(|arg| arg == REPORTS_TO)
}

fn says_what_to_wait_for(container: &Container) -> bool {
    args(container).any(|arg| {
        let option = arg.split('=').next().unwrap_or_default();
        option.starts_with('-') && WAIT_ALL.contains(&option.trim_start_matches('-'))
    })
}
