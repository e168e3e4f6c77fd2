//! Katib's metrics collectors wait for every process that they see, pilot-agent and the shim among them, unless an option
//! disables that (katib#1383, katib#2614).

use contract::names::KATIB_COLLECTORS;

use super::{Change, Plan};
use crate::facts::Facts;
use crate::facts::pod::{BorrowedStr, Container};

/// The spellings of the collector's option to wait for all processes.
const WAIT_ALL: [&str; 3] = ["w", "wait_all", "wait_all_processes"];
/// An option that only Katib's own collectors have: where they report to.
const REPORTS_TO: &str = "-s-db";

/// Has a trial's collectors wait for the training alone, unless the user has set what they wait for.
pub(super) fn disable_wait_all_processes(facts: &Facts, plan: &mut Plan) {
    if !facts.is_katib_trial {
        return;
    }
    for (index, container) in facts.pod.spec.containers.iter().enumerate() {
        if is_collector(container) && !sets_wait_all(container) {
            plan.changes.push(Change::Args { index, words: &["-w", "false"] });
        }
    }
}

fn args<'c>(container: &'c Container) -> impl Iterator<Item = &'c str> {
    container.args.iter().flatten().map(BorrowedStr::as_str)
}

fn is_collector(container: &Container) -> bool {
    KATIB_COLLECTORS.contains(&container.name.as_str()) || args(container).any(|arg| arg == REPORTS_TO)
}

fn sets_wait_all(container: &Container) -> bool {
    args(container).any(|arg| {
        let option = arg.split('=').next().unwrap_or_default();
        option.starts_with('-') && WAIT_ALL.contains(&option.trim_start_matches('-'))
    })
}
