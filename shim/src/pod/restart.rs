//! Decides if and when the kubelet restarts an ended container: `ShouldContainerBeRestarted`, container restart rules
//! (KEP-5307) and `RestartAllContainers` (KEP-5532).

use std::time::Duration;

use contract::policy::{ContainerPolicy, RestartPolicy, RuleAction};

use super::{Container, ContainerState, Exit, PodState, Role};

/// Time in which the kubelet may still restart a container after a final exit code, for a failed probe or a resize. It
/// does so as soon as the container has ended, or another one has started.
const PROBE_RESTART_TIMEOUT: Duration = Duration::from_secs(5);

/// Tells if the kubelet restarts an ended container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WillRestart {
    No,
    Yes,
    /// The exit code decides, which is unknown.
    Unknown,
}

/// The meaning of an exit. Times are since the machine's boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The container runs, or will start.
    Unfinished,
    /// The container may restart until this time.
    Doubtful { until: Duration },
    /// The container has ended and will not restart.
    Finished,
}

impl PodState {
    pub(super) fn verdict(&self, container: &Container) -> Verdict {
        let ContainerState::Terminated { exit, at } = container.state else { return Verdict::Unfinished };
        if container.restart_pending {
            return Verdict::Unfinished;
        }
        let will_restart = will_restart(&container.policy, exit);
        if will_restart == WillRestart::Yes || (will_restart == WillRestart::Unknown && exit == Exit::NotReaped) {
            return Verdict::Unfinished;
        }
        // An unseen exit with RestartAllContainers may have caused this exit.
        let by_policy = will_restart == WillRestart::Unknown || self.containers.iter().any(may_have_restarted_all);
        let by_policy = by_policy.then(|| self.restart_deadline(container, at));
        let by_probe = container.may_restart && container.policy.policy != RestartPolicy::Never;
        let by_probe = by_probe.then(|| at.max(self.starts.last_activity()) + PROBE_RESTART_TIMEOUT);
        let assumed = container.assumed_until.map(|until| until.max(self.starts.retry_deadline(at)));
        by_policy.max(by_probe).max(assumed).map_or(Verdict::Finished, |until| Verdict::Doubtful { until })
    }

    /// Returns the time by which the kubelet will have restarted a container that ended at this time, if it does: twice
    /// its back-off, which doubles from 10 s to 300 s, and a minute for the image. Starts of other containers delay it.
    pub(super) fn restart_deadline(&self, container: &Container, ended: Duration) -> Duration {
        let by_backoff = |restarts: u32| Duration::from_secs(2 * (10 << restarts.min(5)).min(300) + 60);
        let timeout = |restarts| self.retry_window.unwrap_or_else(|| by_backoff(restarts));
        (ended + timeout(container.restarts)).max(self.starts.last_activity() + timeout(0))
    }

    /// Returns true if the kubelet restarts the proxy after a failure, and not after an exit with 0.
    pub(crate) fn proxy_restarts_only_after_failure(&self) -> bool {
        let restarts = |code| will_restart(&self.proxy().policy, Exit::Code(code)) == WillRestart::Yes;
        restarts(1) && !restarts(0)
    }

    /// Returns true if any awaited container has been started.
    pub(crate) fn payload_has_started(&self) -> bool {
        let is_payload = |container: &&Container| container.role == Role::Awaited;
        self.containers.iter().filter(is_payload).any(|container| container.instance.is_some())
    }
}

pub(super) fn will_restart(policy: &ContainerPolicy, exit: Exit) -> WillRestart {
    match (exit, policy.policy) {
        (_, RestartPolicy::Always) => WillRestart::Yes,
        (Exit::Code(code), _) if policy.rules.iter().any(|rule| rule.matches(code)) => WillRestart::Yes,
        (_, RestartPolicy::Never) if policy.rules.is_empty() => WillRestart::No,
        (Exit::Unknown | Exit::NotReaped, _) => WillRestart::Unknown,
        (Exit::Code(_), RestartPolicy::Never) | (Exit::Code(0), RestartPolicy::OnFailure) => WillRestart::No,
        (Exit::Code(_), RestartPolicy::OnFailure) => WillRestart::Yes,
    }
}

/// Returns true if this exit makes the kubelet restart every container of the pod: the first matching rule decides.
pub(super) fn restarts_all(policy: &ContainerPolicy, exit: Exit) -> bool {
    let Exit::Code(code) = exit else { return false };
    let first = policy.rules.iter().find(|rule| rule.matches(code));
    first.is_some_and(|rule| rule.action == RuleAction::RestartAllContainers)
}

/// Returns true if a container may have had an exit that restarts every container, unseen or with an unknown code.
fn may_have_restarted_all(container: &Container) -> bool {
    let is_known = match container.state {
        ContainerState::Waiting => false,
        ContainerState::Running => true,
        ContainerState::Terminated { exit, .. } => matches!(exit, Exit::Code(_)),
    };
    !is_known && can_restart_all(&container.policy)
}

pub(super) fn can_restart_all(policy: &ContainerPolicy) -> bool {
    policy.rules.iter().any(|rule| rule.action == RuleAction::RestartAllContainers)
}
