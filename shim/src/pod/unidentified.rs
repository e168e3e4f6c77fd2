//! Ends of containers that could not be identified: on a busy node a container may end before it was seen with its
//! mounts. An end is given to a container only where no other can have had it, and then another start may still show, for
//! a while, that it was none of these.

use std::time::Duration;

use super::restart::{WillRestart, will_restart};
use super::{Change, Container, ContainerState, Exit, Instance, PodState, Role};

/// An end of a container that could not be identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnidentifiedExit {
    /// Differs for each process.
    pub(crate) process: String,
    pub(crate) exit: Exit,
    pub(crate) at: Duration,
    /// The containers that it can have been, by index.
    pub(crate) candidates: Vec<usize>,
}

impl PodState {
    pub(super) fn unidentified_exit(&mut self, process: &str, exit: Exit, now: Duration) -> Option<Change> {
        let is_last_of = |container: &Container| container.instance.as_ref().is_some_and(|last| last.id == process);
        if self.unidentified.iter().any(|known| known.process == process) || self.containers.iter().any(is_last_of) {
            return None;
        }
        let candidates = self.candidates(now);
        // Before the proxy runs it may have been an init container. Where every start is announced, one that was not
        // is no container's.
        if !self.starts.unidentified_exit_seen(now) || !self.proxy_runs() {
            self.starts.pid_missed(now);
            return None;
        }
        self.unidentified.push(UnidentifiedExit { process: process.to_owned(), exit, at: now, candidates });
        self.identify();
        Some(Change::Unidentified(exit))
    }

    /// A container has started: those ends after which it would not have been restarted were others'.
    pub(super) fn exclude(&mut self, index: usize) {
        let container = &self.containers[index];
        for UnidentifiedExit { exit, candidates, .. } in &mut self.unidentified {
            let was_other = !container.may_restart && will_restart(&container.policy, *exit) == WillRestart::No;
            candidates.retain(|&candidate| candidate != index || !was_other);
        }
        self.identify();
    }

    /// The containers that can have been started unseen at this time, by index.
    pub(super) fn candidates(&self, at: Duration) -> Vec<usize> {
        let containers = self.containers.iter().enumerate();
        containers.filter(|(_, it)| it.role != Role::Proxy && self.may_start(it, at)).map(|(index, _)| index).collect()
    }

    /// Gives each unidentified end to its container, where only one can have had it.
    fn identify(&mut self) {
        while let Some(found) = self.unidentified.iter().position(|exit| self.is_identifiable(exit)) {
            let UnidentifiedExit { process, exit, at, candidates } = self.unidentified.remove(found);
            let Some(&index) = candidates.first() else { continue };
            self.unidentified
                .iter_mut()
                .for_each(|other| other.candidates.retain(|&it| candidates.len() == 1 || it != index));
            let container = &self.containers[index];
            if container.instance.as_ref().is_some_and(|last| last.started >= at) {
                // It has been restarted since.
                continue;
            }
            let restart_deadline = match container.state {
                ContainerState::Running => continue,
                // Another attempt has ended since.
                ContainerState::Terminated { at: last, .. } if last > at => continue,
                ContainerState::Waiting => at,
                ContainerState::Terminated { at: before, .. } => self.restart_deadline(container, before),
            };
            let container = &mut self.containers[index];
            container.restarts += u32::from(container.instance.is_some());
            container.state = ContainerState::Terminated { exit, at };
            // It started after the last that was seen. Its end may be noticed later than the next start.
            let started = container.instance.as_ref().map_or(Duration::ZERO, |last| last.started);
            container.instance = Some(Instance { id: process, pid: 0, started });
            (container.restart_pending, container.assumed_until) = (false, Some(restart_deadline));
        }
    }

    /// Whether an unidentified end is known to be of its first candidate: there is no other, or there are as many such ends
    /// as candidates, each of which can have had one only.
    fn is_identifiable(&self, exit: &UnidentifiedExit) -> bool {
        let alike = self.unidentified.iter().filter(|other| other.candidates == exit.candidates);
        let has_one_only = |&index: &usize| {
            let container = &self.containers[index];
            container.instance.is_none()
                && !container.may_restart
                && alike.clone().all(|other| will_restart(&container.policy, other.exit) == WillRestart::No)
        };
        exit.candidates.len() < 2
            || (alike.clone().count() >= exit.candidates.len() && exit.candidates.iter().all(has_one_only))
    }
}
