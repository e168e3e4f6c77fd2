//! What the shim knows of the pod, and what it does next. Pure: no process, file, socket or clock.

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use contract::args::Watch;
use contract::policy::{ContainerPolicy, RestartPolicy, RuleAction};

/// How a container's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Exit code as the kubelet reports it: 0 to 255, or 128 + n where signal n ended it.
    Code(i32),
    /// It ended, and the code could not be had (kernels before 6.15 do not tell) or was not needed.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => code.fmt(f),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// What has been seen of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Not started yet.
    Unseen,
    /// Its init process runs.
    Running,
    /// Its init process has ended; `at` is time since the machine's boot.
    Exited { exit: Exit, at: Duration },
}

/// What a container is to the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The proxy serves its work.
    Awaited,
    /// The shim only ends after it.
    Outlived,
    /// What is to be ended.
    Proxy,
}

/// A container of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) policy: ContainerPolicy,
    pub(crate) life: Life,
    /// The start that was seen last: the kubelet gives each an id.
    pub(crate) attempt: Option<String>,
    /// How many starts were seen after the first.
    pub(crate) restarts: u32,
    /// All containers are being started again (KEP-5532), and this one has not been yet.
    pub(crate) due_again: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look for new processes, again and again: something may start that must not be missed.
    Look,
    /// Sleep until something that runs ends.
    Wait,
    /// Ask the proxy to quit, and wait for its end.
    Quit,
    /// Nothing is left to do.
    End,
}

/// The pod as the shim has seen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) containers: Vec<Container>,
    retry_window: Option<Duration>,
    announced: Announced,
    /// Starts of containers that are not ours: ephemeral ones, other init containers.
    others: Vec<String>,
}

/// The starts that were announced, and that no process has been seen of yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Announced {
    count: usize,
    /// When the first of them was heard of since there were none.
    since: Duration,
    /// When the last was.
    last: Duration,
}

/// How long after its announcement a start may still be seen. The runtime takes a fraction of a second; past this, and with
/// PIDs given out meanwhile that nobody saw, the container came and went unseen.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// The attempt of a container that came and went unseen.
const PRESUMED: &str = "presumed";

/// Whether the kubelet starts an ended container again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    No,
    Yes,
    /// The exit code would tell, and is unknown.
    Perhaps,
}

impl Pod {
    pub(crate) fn new(arguments: &Watch) -> Self {
        let container = |role| {
            move |name: &String| Container {
                name: name.clone(),
                role,
                policy: arguments.policy_of(name),
                life: Life::Unseen,
                attempt: None,
                restarts: 0,
                due_again: false,
            }
        };
        let awaited = arguments.awaited.iter().map(container(Role::Awaited));
        let outlived = arguments.outlived.iter().map(container(Role::Outlived));
        let proxy = std::iter::once(&arguments.proxy).map(container(Role::Proxy));
        let retry_window = arguments.retry_window.map(|seconds| Duration::from_secs(seconds.into()));
        let containers = awaited.chain(outlived).chain(proxy).collect();
        Self { containers, retry_window, announced: Announced::default(), others: Vec::new() }
    }

    /// Takes note that starts of containers were announced.
    pub(crate) fn announce(&mut self, starts: usize, now: Duration) {
        if starts == 0 {
            return;
        }
        if self.announced.count == 0 {
            self.announced.since = now;
        }
        self.announced.count += starts;
        self.announced.last = now;
    }

    /// Whether a start was announced that has not been seen.
    pub(crate) fn expects_a_start(&self) -> bool {
        self.announced.count > 0
    }

    /// Whether such a start is so recent that it may be seen at any moment.
    pub(crate) fn expects_a_start_soon(&self, now: Duration) -> bool {
        self.expects_a_start() && now < self.announced.last + SEEN_WITHIN
    }

    /// Gives up announced starts that are too old to be seen still. `unseen_since` is when a PID was last given out to a
    /// process that nobody saw; without one since the announcement nothing has been started yet, however long it takes.
    /// Returns the containers that are presumed to have come and gone.
    pub(crate) fn give_up(&mut self, unseen_since: Option<Duration>, now: Duration) -> Vec<usize> {
        let was_unseen = unseen_since.is_some_and(|unseen| unseen >= self.announced.since);
        if !self.expects_a_start() || self.expects_a_start_soon(now) || !was_unseen {
            return Vec::new();
        }
        let starts = std::mem::take(&mut self.announced.count);
        (0..starts).filter_map(|_| self.presume(Exit::Unknown, now)).collect()
    }

    /// Takes note that a container has started and ended before it could be told which it was. Returns the one that it is
    /// presumed to have been; how it ended is still to be said.
    pub(crate) fn came_and_went(&mut self, now: Duration) -> Option<usize> {
        self.meet_announced(true);
        self.presume(Exit::Unknown, now)
    }

    /// Some container came and went. Which is not known: it is taken to be the first that is still to start, or that is to start again;
    /// one that is not awaited before any that is, since too early an end of the proxy is worse than a late one. Should that one
    /// be seen after all, the next takes its place.
    fn presume(&mut self, exit: Exit, now: Duration) -> Option<usize> {
        let place = |role, again| {
            self.containers.iter().position(|container| {
                container.role == role && self.may_start(container, now) && (again || !container.is_presumed())
            })
        };
        let places = [(Role::Outlived, false), (Role::Awaited, false), (Role::Outlived, true), (Role::Awaited, true)];
        let index = places.into_iter().find_map(|(role, again)| place(role, again))?;
        let container = &mut self.containers[index];
        container.restarts += u32::from(container.attempt.is_some());
        container.attempt = Some(PRESUMED.to_owned());
        container.due_again = false;
        self.exited(index, exit, now);
        Some(index)
    }

    /// Takes note of a start of a container, which was announced where `is_heard`. Returns which it is, where it is one of
    /// ours and the start is new.
    pub(crate) fn started(&mut self, name: &str, attempt: &str, is_heard: bool, now: Duration) -> Option<usize> {
        let Some(index) = self.containers.iter().position(|container| container.name == name) else {
            if !self.others.iter().any(|other| other == attempt) {
                self.others.push(attempt.to_owned());
                self.meet_announced(is_heard);
            }
            return None;
        };
        self.start(index, attempt, is_heard, now)
    }

    /// Whether a start of a container has been seen.
    pub(crate) fn knows(&self, attempt: &str) -> bool {
        let is_last_of = |container: &Container| container.attempt.as_deref() == Some(attempt);
        self.containers.iter().any(is_last_of) || self.others.iter().any(|other| other == attempt)
    }

    /// A start has been seen, of those that were announced.
    fn meet_announced(&mut self, is_heard: bool) {
        self.announced.count = self.announced.count.saturating_sub(usize::from(is_heard));
    }

    /// Takes note of a process where no names can be read: the proxy, or the first container that is still to start;
    /// what is left over (an exec session, perhaps) is awaited like a container that is never started again.
    pub(crate) fn started_unnamed(&mut self, attempt: &str, is_proxy: bool, now: Duration) -> Option<usize> {
        if self.containers.iter().any(|container| container.attempt.as_deref() == Some(attempt)) {
            return None;
        }
        let fits = |container: &Container| match container.role {
            Role::Proxy => is_proxy,
            Role::Awaited | Role::Outlived => !is_proxy && self.may_start(container, now),
        };
        let index = self.containers.iter().position(fits).unwrap_or_else(|| {
            self.containers.push(Container {
                name: format!("process-{attempt}"),
                role: Role::Awaited,
                policy: RestartPolicy::Never.into(),
                life: Life::Unseen,
                attempt: None,
                restarts: 0,
                due_again: false,
            });
            self.containers.len() - 1
        });
        self.start(index, attempt, true, now)
    }

    fn start(&mut self, index: usize, attempt: &str, is_heard: bool, now: Duration) -> Option<usize> {
        let container = &mut self.containers[index];
        if container.attempt.as_deref() == Some(attempt) {
            return None;
        }
        let presumed = container.presumed_exit();
        container.restarts += u32::from(container.attempt.is_some());
        container.attempt = Some(attempt.to_owned());
        container.life = Life::Running;
        container.due_again = false;
        self.meet_announced(is_heard);
        if let Some(exit) = presumed {
            self.presume(exit, now);
        }
        Some(index)
    }

    /// Takes note that the proxy has been started by its parent. Returns which container it is.
    pub(crate) fn proxy_started(&mut self, attempt: &str, now: Duration) -> usize {
        let index = self.containers.iter().position(|container| container.role == Role::Proxy).unwrap_or_default();
        self.start(index, attempt, false, now);
        index
    }

    /// Whether the proxy runs now.
    pub(crate) fn proxy_runs(&self) -> bool {
        self.proxy().is_some_and(|proxy| proxy.life == Life::Running)
    }

    /// Whether the kubelet starts the proxy again after a failure, and not after an end with 0.
    pub(crate) fn proxy_returns_only_after_failure(&self) -> bool {
        let returns =
            |code| self.proxy().is_some_and(|proxy| comes_back(&proxy.policy, Exit::Code(code)) == Return::Yes);
        returns(1) && !returns(0)
    }

    /// Takes note of the end of a container.
    pub(crate) fn exited(&mut self, index: usize, exit: Exit, now: Duration) {
        let container = &mut self.containers[index];
        container.life = Life::Exited { exit, at: now };
        if restarts_all(&container.policy, exit) {
            for container in &mut self.containers {
                container.due_again = true;
            }
        }
    }

    /// What to do now.
    pub(crate) fn next(&self, now: Duration) -> Step {
        let mut awaited = self.containers.iter().filter(|container| container.role == Role::Awaited);
        if self.proxy_runs() && awaited.all(|container| self.is_finished(container, now)) {
            Step::Quit
        } else if self.containers.iter().all(|container| self.is_finished(container, now)) {
            Step::End
        } else if self.containers.iter().any(|container| self.may_start(container, now)) {
            Step::Look
        } else {
            Step::Wait
        }
    }

    /// Whether the codes of ended containers decide anything: whether any could come back after some code.
    pub(crate) fn needs_code(&self, index: usize) -> bool {
        comes_back(&self.containers[index].policy, Exit::Unknown) == Return::Perhaps
    }

    fn proxy(&self) -> Option<&Container> {
        self.containers.iter().find(|container| container.role == Role::Proxy)
    }

    /// Whether a container has ended and will not be started again.
    fn is_finished(&self, container: &Container, now: Duration) -> bool {
        let Life::Exited { exit, at } = container.life else { return false };
        !container.due_again
            && match comes_back(&container.policy, exit) {
                Return::No => true,
                Return::Yes => false,
                Return::Perhaps => now >= at + self.window(container.restarts),
            }
    }

    /// Whether a container does not run now and may start.
    fn may_start(&self, container: &Container, now: Duration) -> bool {
        container.life != Life::Running && !self.is_finished(container, now)
    }

    /// How long a container that ended with an unknown code is expected back: twice the kubelet's back-off for that
    /// restart, which doubles from 10 s to 300 s, and a minute for images.
    fn window(&self, restarts: u32) -> Duration {
        self.retry_window.unwrap_or_else(|| Duration::from_secs(2 * (10 << restarts.min(5)).min(300) + 60))
    }
}

impl Container {
    fn is_presumed(&self) -> bool {
        self.attempt.as_deref() == Some(PRESUMED)
    }

    /// How it is presumed to have ended, unless so that the kubelet starts it again: then a start is no surprise.
    fn presumed_exit(&self) -> Option<Exit> {
        match self.life {
            Life::Exited { exit, .. } if self.is_presumed() && comes_back(&self.policy, exit) != Return::Yes => {
                Some(exit)
            }
            _ => None,
        }
    }
}

fn comes_back(policy: &ContainerPolicy, exit: Exit) -> Return {
    match (exit, policy.policy) {
        (_, RestartPolicy::Always) => Return::Yes,
        (Exit::Code(code), _) if policy.rules.iter().any(|rule| rule.matches(code)) => Return::Yes,
        (_, RestartPolicy::Never) if policy.rules.is_empty() => Return::No,
        (Exit::Unknown, _) => Return::Perhaps,
        (Exit::Code(_), RestartPolicy::Never) | (Exit::Code(0), RestartPolicy::OnFailure) => Return::No,
        (Exit::Code(_), RestartPolicy::OnFailure) => Return::Yes,
    }
}

/// Whether this end has the kubelet start every container of the pod again: the first rule that matches says so.
fn restarts_all(policy: &ContainerPolicy, exit: Exit) -> bool {
    let Exit::Code(code) = exit else { return false };
    let first = policy.rules.iter().find(|rule| rule.matches(code));
    first.is_some_and(|rule| rule.action == RuleAction::RestartAllContainers)
}
