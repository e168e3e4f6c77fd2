//! Sees containers start: hears the announcements, and looks at new processes while a start is expected.

#[cfg(test)]
mod tests;

use std::time::Duration;

use rustix::event::PollFd;

use crate::clock::now;
use crate::decide::{Pod, Step};
use crate::log;
use crate::process::Process;
use crate::procfs::{Attempt, Procfs, TopProcess};
use crate::starts::Starts;

/// Pause between two looks while a start is expected. The runtime makes a container's init some tens of milliseconds
/// before it lets it run.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Pause between two looks while something may start, but starts are announced: for a container whose start is not
/// (one with an `/etc/hosts` of its own).
const LOOK_UNANNOUNCED_EVERY: Duration = Duration::from_millis(250);
/// Where the kubelet announces a start.
const HOSTS: &str = "/etc/hosts";
/// Above so many new PIDs, `/proc` is listed.
const MANY_PIDS: i32 = 1000;
/// How many looks a process gets until it has a container's mounts; without by then it is none.
const NAMED_WITHIN: u32 = 400;
/// How many looks a PID gets until there is a process of it: the kernel gives the number out before `/proc` has it.
const THERE_WITHIN: u32 = 20;
/// How long after listening began a start may still be one that was announced before it.
const ANNOUNCED_BEFORE: Duration = Duration::from_secs(30);
/// The proxy's command, where containers have no names.
const PROXY_COMMAND: &str = "pilot-agent";
/// Commands of a process that the runtime is still making, where containers have no names.
const RUNTIME_COMMANDS: [&str; 2] = ["runc", "crun"];

/// How far starts can be relied on to be announced.
enum Announcements {
    /// No start was seen yet that tells.
    Unproven(Starts),
    /// A start was seen that had been announced.
    Proven(Starts),
    /// They cannot be listened to, or one was seen that had not been announced.
    None,
}

/// The init process of a container that has started.
pub(crate) struct Sighting {
    /// The container's index in the pod.
    pub(crate) index: usize,
    pub(crate) process: TopProcess,
    /// The same, where it was opened before it had a name.
    pub(crate) opened: Option<Process>,
}

/// What a look has shown.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) starts: Vec<Sighting>,
    /// What the runtime was making containers of, and has ended since: it had little to do, or could not be started.
    pub(crate) nameless: Vec<Process>,
}

pub(crate) struct Lookout {
    procfs: Procfs,
    /// Whether containers can be told apart by name.
    named: bool,
    announcements: Announcements,
    listening_since: Duration,
    /// The last PID given out at the last look.
    last_pid: i32,
    /// When a PID was last given out to a process that had gone before it was looked at.
    unseen_since: Option<Duration>,
    /// What is to be looked at again.
    unready: Vec<Unready>,
}

/// A PID that is not yet what it may become.
struct Unready {
    pid: i32,
    /// Whether there has been a process of it.
    was_there: bool,
    /// The process that the runtime is making a container of. An exec session is none: it is born with its container's mounts.
    opened: Option<Process>,
    /// How many more looks it is worth.
    looks: u32,
}

impl Lookout {
    pub(crate) fn new(procfs: Procfs) -> Self {
        let named = procfs.names_containers();
        if !named {
            let instead = "every process from outside the pod is awaited, exec sessions too";
            log::warn(&format!("containers have no names here: {instead}"), &[]);
        }
        Self {
            procfs,
            named,
            announcements: Starts::listen(HOSTS).map_or(Announcements::None, Announcements::Unproven),
            listening_since: now(),
            last_pid: 0,
            unseen_since: None,
            unready: Vec::new(),
        }
    }

    pub(crate) fn procfs(&self) -> &Procfs {
        &self.procfs
    }

    /// The pause until the next look; `None` where nothing needs to be looked for.
    pub(crate) fn pace(&self, pod: &Pod) -> Option<Duration> {
        if pod.expects_a_start_soon(now()) || !self.unready.is_empty() {
            return Some(LOOK_EVERY);
        }
        if pod.expects_a_start() {
            return Some(LOOK_UNANNOUNCED_EVERY);
        }
        match (pod.next(now()), &self.announcements) {
            (Step::Look, Announcements::Proven(_)) if self.named => Some(LOOK_UNANNOUNCED_EVERY),
            (Step::Look, _) => Some(LOOK_EVERY),
            // Any process may be a container's: an exec session may have been taken for one that is still to come.
            (Step::Wait | Step::Quit, _) if !self.named => Some(LOOK_UNANNOUNCED_EVERY),
            (Step::Wait | Step::Quit | Step::End, _) => None,
        }
    }

    /// For a poll that wakes when a start is announced, and when what may become a container ends.
    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let opened = self.unready.iter().filter_map(|unready| unready.opened.as_ref());
        self.starts().map(Starts::poll_fd).into_iter().chain(opened.filter_map(Process::until_end))
    }

    /// Takes note of the starts that were announced.
    pub(crate) fn hear(&self, pod: &mut Pod) {
        pod.announce(self.starts().map_or(0, Starts::take), now());
    }

    fn starts(&self) -> Option<&Starts> {
        match &self.announcements {
            Announcements::Unproven(starts) | Announcements::Proven(starts) => Some(starts),
            Announcements::None => None,
        }
    }

    /// Looks for containers that have started, among the processes that have since the last look.
    pub(crate) fn look(&mut self, pod: &mut Pod) -> Seen {
        let last_pid = self.procfs.last_pid().unwrap_or_default();
        let mut seen = Seen::default();
        if last_pid == self.last_pid && self.unready.is_empty() {
            return seen;
        }
        let mut found = self.new_processes(last_pid);
        // Whatever was there, or came and went, had been announced before, however long this process was kept from running.
        self.hear(pod);
        if self.is_none_of_the_awaited(pod) {
            found.any_unseen |= !found.nameless.is_empty();
        } else {
            seen.nameless = found.nameless;
        }
        if found.any_unseen {
            self.unseen_since = Some(now());
        }
        let is_news = |process: &TopProcess| process.attempt.as_ref().is_some_and(|attempt| !pod.knows(&attempt.id));
        if found.top.iter().any(is_news) {
            // The earliest process of a container is its init, and that one may be older than what is new; what is new may have
            // ended since.
            let listed = self.procfs.pids().into_iter();
            let seen_before = std::mem::take(&mut found.top);
            found.top = self.procfs.top_processes(listed.filter(|pid| seen_before.iter().all(|each| each.pid != *pid)));
            found.top.extend(seen_before);
            found.top.sort_by_key(|process| (process.started, process.pid));
        }
        for process in found.top {
            let met = self.meet(pod, &process);
            if matches!(met, Met::Unready) {
                continue;
            }
            let known = self.unready.iter().position(|unready| unready.pid == process.pid);
            let opened = known.and_then(|at| self.unready.swap_remove(at).opened);
            if let Met::Start(index) = met {
                seen.starts.push(Sighting { index, process, opened });
            }
        }
        seen
    }

    /// What there is of the PIDs that were given out since the last look, and of those that were unready then.
    fn new_processes(&mut self, last_pid: i32) -> Found {
        let before = std::mem::replace(&mut self.last_pid, last_pid);
        let known: Vec<i32> = self.unready.iter().map(|unready| unready.pid).collect();
        let is_new = |pid: &i32| !known.contains(pid);
        // At the first look, when PIDs began anew, or when too many were given out to ask for each, they are listed.
        if before == 0 || last_pid < before || last_pid - before > MANY_PIDS {
            let listed = self.procfs.pids().into_iter().filter(is_new);
            let listed = listed.map(|pid| Unready { pid, was_there: true, opened: None, looks: NAMED_WITHIN });
            self.unready.extend(listed);
            return Found { any_unseen: true, ..self.look_at_unready() };
        }
        let new = (before + 1..=last_pid).filter(is_new);
        self.unready.extend(new.map(|pid| Unready { pid, was_there: false, opened: None, looks: THERE_WITHIN }));
        self.look_at_unready()
    }

    /// Whether what ends without a name cannot be an awaited container, or not surely enough to act on it: before the proxy runs it may
    /// be an init container; and where every start is announced, what was not is none.
    fn is_none_of_the_awaited(&self, pod: &Pod) -> bool {
        let is_settled = now() > self.listening_since + ANNOUNCED_BEFORE;
        let all_announced = matches!(self.announcements, Announcements::Proven(_)) && is_settled;
        !pod.proxy_runs() || (all_announced && !pod.expects_a_start())
    }

    /// Those of the unready PIDs that are top processes. The rest are looked at again, or given up.
    fn look_at_unready(&mut self) -> Found {
        // Asked before they are read: one that turns up in between is looked at again, not taken for another's child.
        let there: Vec<bool> = self.unready.iter().map(|unready| self.procfs.exists(unready.pid)).collect();
        let top = self.procfs.top_processes(self.unready.iter().map(|unready| unready.pid));
        let (mut nameless, mut any_unseen) = (Vec::new(), false);
        let before = std::mem::take(&mut self.unready);
        for (Unready { pid, was_there, opened, looks }, is_there) in before.into_iter().zip(there) {
            let looks = looks.saturating_sub(1);
            if let Some(process) = top.iter().find(|process| process.pid == pid) {
                let looks = if was_there { looks } else { NAMED_WITHIN };
                let opened = opened.or_else(|| self.open_nameless(process));
                self.unready.extend((looks > 0).then_some(Unready { pid, was_there: true, opened, looks }));
            } else if let Some(opened) = opened {
                if opened.has_ended(&self.procfs) {
                    nameless.push(opened);
                } else {
                    self.unready.push(Unready { pid, was_there, opened: Some(opened), looks });
                }
            } else if !is_there && !was_there && looks > 0 {
                self.unready.push(Unready { pid, was_there, opened, looks });
            } else {
                // It is some container's own child, or it has ended before anybody looked.
                any_unseen |= !is_there || self.procfs.start_of(pid).is_none();
            }
        }
        Found { top, nameless, any_unseen }
    }

    /// Opens what the runtime is making a container of, so that its end is heard of, and its code, though it were never seen
    /// with a name: a node that is busy keeps this process from looking for longer than `true` takes.
    fn open_nameless(&self, process: &TopProcess) -> Option<Process> {
        if !self.named || process.attempt.is_some() {
            return None;
        }
        // An exec session may have ended while its mounts were read.
        Process::open(process).filter(|opened| !opened.has_ended(&self.procfs))
    }

    /// Takes note of a process from outside the pod: a container's init, unless its start is known already.
    fn meet(&mut self, pod: &mut Pod, process: &TopProcess) -> Met {
        if !self.named {
            return self.meet_unnamed(pod, process);
        }
        let Some(Attempt { container, id }) = &process.attempt else { return Met::Unready };
        // What started before was announced to nobody.
        let is_heard = process.started_at() > self.listening_since;
        let was_expected = pod.expects_a_start();
        let Some(index) = pod.started(container, id, is_heard, now()) else { return Met::Nothing };
        if is_heard {
            self.judge_announcements(was_expected, process.started_at());
        }
        Met::Start(index)
    }

    fn meet_unnamed(&self, pod: &mut Pod, process: &TopProcess) -> Met {
        if process.pid == std::process::id().cast_signed() {
            return Met::Nothing;
        }
        let command = self.procfs.command(process.pid).unwrap_or_default();
        if RUNTIME_COMMANDS.iter().any(|runtime| command.starts_with(runtime)) {
            return Met::Unready;
        }
        let met = pod.started_unnamed(&unnamed_attempt(process), command == PROXY_COMMAND, now());
        met.map_or(Met::Nothing, Met::Start)
    }

    /// A start that was seen shows whether starts are announced here, unless it may have been announced before anybody listened.
    fn judge_announcements(&mut self, was_expected: bool, started: Duration) {
        let may_be_early = started < self.listening_since + ANNOUNCED_BEFORE;
        self.announcements = match std::mem::replace(&mut self.announcements, Announcements::None) {
            Announcements::Unproven(starts) | Announcements::Proven(starts) if was_expected => {
                Announcements::Proven(starts)
            }
            Announcements::Unproven(starts) | Announcements::Proven(starts) if may_be_early => {
                Announcements::Unproven(starts)
            }
            _ => Announcements::None,
        };
    }

    /// Stops expecting starts that were announced too long ago. Returns the containers that came and went unseen.
    pub(crate) fn give_up(&self, pod: &mut Pod) -> Vec<usize> {
        if self.unready.iter().any(|unready| unready.opened.is_some()) {
            // The runtime is still making one.
            return Vec::new();
        }
        pod.give_up(self.unseen_since, now())
    }

    /// Whether a process is this start of a container.
    pub(crate) fn is_start(&self, process: &TopProcess, attempt: &str) -> bool {
        match &process.attempt {
            Some(of) if self.named => of.id == attempt,
            _ => unnamed_attempt(process) == attempt,
        }
    }
}

/// What a look has found.
struct Found {
    /// The processes from outside the pod.
    top: Vec<TopProcess>,
    /// What was opened, and has ended without a name.
    nameless: Vec<Process>,
    /// Whether any has ended before it could be told what it was.
    any_unseen: bool,
}

/// What a process from outside the pod turned out to be.
enum Met {
    /// The init of a container that has started, by its index in the pod.
    Start(usize),
    /// Something known, or nothing of ours.
    Nothing,
    /// The runtime is still at making it: it is worth another look.
    Unready,
}

/// What tells a process from any other of this boot, where containers have no names.
fn unnamed_attempt(process: &TopProcess) -> String {
    format!("{}-{}", process.pid, process.started)
}
