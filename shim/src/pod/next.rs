//! Decides what to do next.
use std::time::Duration;

use super::restart::Verdict;
use super::{Container, ContainerState, Exit, PodState, Role};

/// Scan interval while a start is expected. The runtime creates a container's init process some tens of milliseconds
/// before it lets it run.
const SCAN_INTERVAL: Duration = Duration::from_millis(5);
/// Scan interval while a container may start without an announcement.
const UNANNOUNCED_SCAN_INTERVAL: Duration = Duration::from_millis(20);
/// Scan interval while a container may start and starts are announced, for one whose start is not.
const FALLBACK_SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Wait for something to start or to end.
    Wait,
    /// Ask the proxy to quit.
    QuitProxy,
    /// Nothing is left to do.
    Exit,
}

impl PodState {
    /// Returns the action to take now.
    pub(crate) fn next(&self, now: Duration) -> Action {
        let finished = self.payload_has_finished(now);
        if finished && self.proxy_runs() {
            Action::QuitProxy
        } else if self.all_have_finished(now) && !self.containers.iter().any(Container::is_to_be_reaped) {
            Action::Exit
        } else {
            Action::Wait
        }
    }

    /// Returns the scan interval; `None` if nothing may start.
    pub(crate) fn scan_interval(&self, now: Duration) -> Option<Duration> {
        if self.starts.has_recent(now) {
            return Some(SCAN_INTERVAL);
        }
        let may_start = self.containers.iter().any(|container| self.may_start(container, now));
        let interval =
            if self.starts.announcements_work() { FALLBACK_SCAN_INTERVAL } else { UNANNOUNCED_SCAN_INTERVAL };
        may_start.then_some(interval)
    }

    /// Returns true if every awaited container has finished.
    pub(crate) fn payload_has_finished(&self, now: Duration) -> bool {
        let is_payload = |container: &&Container| container.role == Role::Awaited;
        self.containers.iter().filter(is_payload).all(|container| self.is_finished(container, now))
    }

    fn all_have_finished(&self, now: Duration) -> bool {
        self.containers.iter().all(|container| self.is_finished(container, now))
    }

    /// Returns the next time at which the decision may change without an event.
    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        let doubts = self.containers.iter().filter_map(|container| match self.verdict(container) {
            Verdict::Doubtful { until } => Some(until),
            Verdict::Finished | Verdict::Unfinished => None,
        });
        doubts.chain(self.starts.deadlines()).filter(|&at| at > now).min()
    }

    /// Returns true if a container does not run now and may start.
    pub(super) fn may_start(&self, container: &Container, now: Duration) -> bool {
        container.state != ContainerState::Running && !self.is_finished(container, now)
    }

    fn is_finished(&self, container: &Container, now: Duration) -> bool {
        match self.verdict(container) {
            Verdict::Finished => true,
            // The announced or unidentified container may be this one.
            Verdict::Doubtful { until } => {
                let mut exits = self.unidentified.iter();
                now >= until
                    && !self.starts.has_pending_or_retry(now)
                    && exits.all(|exit| now >= self.restart_deadline(container, exit.at))
            }
            Verdict::Unfinished => false,
        }
    }
}

impl Container {
    /// Returns true if the kubelet may not know yet that the container has ended.
    fn is_to_be_reaped(&self) -> bool {
        matches!(self.state, ContainerState::Terminated { exit: Exit::NotReaped, .. })
    }
}
