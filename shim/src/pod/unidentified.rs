//! Assigns unidentified exits: on a busy node a container may end before it was seen with its mounts. An exit is assigned
//! to a container only if no other can have had it. For a while, another start may still show that it was neither.

use std::time::Duration;

use super::restart::{WillRestart, will_restart};
use super::{Change, Container, ContainerState, Exit, Instance, PodState, Role};

/// Describes an exit of a container that could not be identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnidentifiedExit {
    /// An id that differs for each process.
    pub(crate) process: String,
    pub(crate) exit: Exit,
    pub(crate) at: Duration,
    /// The containers that can have had it, by index.
    pub(crate) candidates: Vec<usize>,
}

impl PodState {
    pub(super) fn unidentified_exit(&mut self, process: &str, exit: Exit, now: Duration) -> Option<Change> {
        let is_last_of = |container: &Container| container.instance.as_ref().is_some_and(|last| last.id == process);
        if self.unidentified.iter().any(|known| known.process == process) || self.containers.iter().any(is_last_of) {
            return None;
        }
        let candidates = self.candidates(now);
        // Before the proxy runs, it may have been an init container. If every start is announced, an unannounced process
        // is not a container.
        if !self.starts.unidentified_exit_seen(now) || !self.proxy_runs() {
            self.starts.pid_missed(now);
            return None;
        }
        self.unidentified.push(UnidentifiedExit { process: process.to_owned(), exit, at: now, candidates });
        self.identify();
        Some(Change::Unidentified(exit))
    }

    /// Removes this container from the candidates of every exit after which its policy would not have restarted it.
    pub(super) fn exclude(&mut self, index: usize) {
        let container = &self.containers[index];
        for UnidentifiedExit { exit, candidates, .. } in &mut self.unidentified {
            let was_other = !container.may_restart && will_restart(&container.policy, *exit) == WillRestart::No;
            candidates.retain(|&candidate| candidate != index || !was_other);
        }
        self.identify();
    }

    /// Returns the containers that can have been started unseen at this time, by index.
    pub(super) fn candidates(&self, at: Duration) -> Vec<usize> {
        let containers = self.containers.iter().enumerate();
        containers.filter(|(_, it)| it.role != Role::Proxy && self.may_start(it, at)).map(|(index, _)| index).collect()
    }

    /// Assigns each unidentified exit that only one container can have had.
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
            // It started after the last observed start. Its exit may be noticed later than the next start.
            let started = container.instance.as_ref().map_or(Duration::ZERO, |last| last.started);
            container.instance = Some(Instance { id: process, pid: 0, started });
            (container.restart_pending, container.assumed_until) = (false, Some(restart_deadline));
        }
    }

    /// Returns true if an unidentified exit is of its first candidate: there is no other, or there are as many such exits
    /// as candidates, each of which can have had only one.
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
