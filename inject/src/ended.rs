//! Tells a pod's shim which awaited containers have ended for good, by an annotation that is added when the kubelet reports
//! it in the pod's status.
//!
//! The shim reads the annotation in a volume of the downward API. So it needs neither rights nor a watch.

use std::collections::HashSet;

use contract::args::AWAIT;
use contract::names::{ENDED_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER};
use contract::policy::{ContainerPolicy, RestartPolicy, RuleAction};

use crate::Decision;
use crate::patch::PatchBuilder;
use crate::plan::own_policy;
use crate::pod::{Container, Pod, Terminated};

/// Reason of a container that the kubelet has lost, and starts again.
const LOST: &str = "ContainerStatusUnknown";
/// Condition of a pod whose containers are all about to be started again (KEP-5532).
const ALL_RESTARTING: &str = "AllContainersRestarting";

/// Adds the annotation if all awaited containers have ended for good, and removes it if one has not, or no longer.
/// Deciding again on the patched pod changes nothing.
#[must_use]
pub fn report_ended(pod: &Pod) -> Decision {
    let mut patch = PatchBuilder::new(pod);
    let reason = if let Some(codes) = ended(pod, &awaited(pod)) {
        patch.annotation(ENDED_ANNOTATION, &codes);
        "every awaited container has ended for good"
    } else {
        patch.remove_annotation(ENDED_ANNOTATION);
        "an awaited container runs, or will be started"
    };
    Decision::without_shim(patch.finish(), reason)
}

/// Returns true if the kubelet has reported that a regular container has ended, and does not start it again.
#[must_use]
pub fn has_ended_for_good(pod: &Pod, container: &str) -> bool {
    ended(pod, &HashSet::from([container])).is_some()
}

/// Returns the exit codes of the awaited containers, such as `main=0,metrics=137`; `None` unless all have ended for good.
fn ended(pod: &Pod, awaited: &HashSet<&str>) -> Option<String> {
    if awaited.is_empty() || pod.status.has_condition(ALL_RESTARTING) {
        return None;
    }
    let (mut codes, ends) = (Vec::new(), pod.status.ends());
    for container in &pod.spec.containers {
        let is_awaited = awaited.contains(&container.name.as_str());
        let policy = policy_of(container, pod)?;
        let may_restart_all = policy.rules.iter().any(|rule| rule.action == RuleAction::RestartAllContainers);
        if is_awaited || may_restart_all {
            let code = code_of_last_run(ends.get(container.name.as_str())?, &policy)?;
            codes.extend(is_awaited.then(|| format!("{}={code}", container.name)));
        }
    }
    let mut inits = pod.spec.init_containers.iter().flatten();
    let restarts_all = inits.any(|container| {
        ends.get(container.name.as_str()).is_some_and(|end| restarts_all(container, end.exit_code, pod))
    });
    (codes.len() == awaited.len() && !restarts_all).then(|| codes.join(","))
}

/// Returns the containers that the shim waits for, by its own arguments: they cannot be changed once the pod exists.
fn awaited(pod: &Pod) -> HashSet<&str> {
    let shims = pod.all_containers().filter(|it| it.is_named(SHIM_CONTAINER) || it.is_named(PROXY_CONTAINER));
    let words = shims.flat_map(|shim| shim.command.iter().chain(&shim.args).flatten());
    words.filter_map(|word| word.strip_prefix("--")?.strip_prefix(AWAIT)?.strip_prefix('=')).collect()
}

/// Returns the exit code of an end after which the kubelet does not start the container again (`ShouldContainerBeRestarted` and, since
/// Kubernetes 1.36, `ShouldAllContainersRestart`).
fn code_of_last_run(end: &Terminated, policy: &ContainerPolicy) -> Option<i32> {
    let Terminated { exit_code: code, reason } = end;
    let is_final = match policy.policy {
        RestartPolicy::Always => false,
        RestartPolicy::Never => true,
        RestartPolicy::OnFailure => *code == 0,
    };
    let restarts = policy.rules.iter().any(|rule| rule.matches(*code));
    (is_final && !restarts && reason.as_deref() != Some(LOST)).then_some(*code)
}

/// Returns true if an exit of an init container or native sidecar with this code has every container started again.
fn restarts_all(container: &Container, code: i32, pod: &Pod) -> bool {
    // A rule that cannot be read may be one.
    policy_of(container, pod).is_none_or(|policy| {
        let first = policy.rules.iter().find(|rule| rule.matches(code));
        first.is_some_and(|rule| rule.action == RuleAction::RestartAllContainers)
    })
}

/// Returns a container's restart policy; `None` if this program cannot read it.
fn policy_of(container: &Container, pod: &Pod) -> Option<ContainerPolicy> {
    let of_pod = pod.spec.restart_policy().unwrap_or(RestartPolicy::Always);
    Some(own_policy(container, of_pod).ok()?.unwrap_or_else(|| of_pod.into()))
}
