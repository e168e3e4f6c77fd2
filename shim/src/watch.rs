//! `aux-shim watch`: sees the pod's containers start and end, and does what `decide` says.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use contract::args::Watch;
use contract::endpoint::Endpoint;
use rustix::event::{PollFd, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::decide::{Exit, Life, Pod, Role, Step};
use crate::log;
use crate::memory;
use crate::process::Process;
use crate::procfs::{Attempt, Procfs, TopProcess};
use crate::quit::{self, Answer};
use crate::starts::Starts;

/// Pause between two looks while a start is expected. The runtime makes a container's init some tens of milliseconds
/// before it lets it run.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Pause between two looks while something may start, but starts are announced: for a container whose start is not
/// (one with an `/etc/hosts` of its own).
const LOOK_UNANNOUNCED_EVERY: Duration = Duration::from_millis(250);
/// Where the kubelet announces a start.
const HOSTS: &str = "/etc/hosts";
/// Pause between two looks at processes that the kernel does not watch for us.
const LOOK_AT_EVERY: Duration = Duration::from_millis(500);
/// Above so many new PIDs, `/proc` is listed.
const MANY_PIDS: i32 = 1000;
/// How many looks a process gets until it has a container's mounts; without by then it is none.
const NAMED_WITHIN: u32 = 400;
/// Pause before a proxy that did not answer is asked again, doubled each time up to [`ASK_AGAIN_AT_MOST`].
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_secs(30);
/// Pause before a proxy is asked again that has said yes: it may drain.
const ENDS_WITHIN: Duration = Duration::from_mins(1);
/// The kubelet inspects containers one after the other: were the shim gone before it has seen the proxy's end, it would
/// start the shim once more.
const STAY_AFTER_PROXY: Duration = Duration::from_millis(100);
/// Where the kubelet reads a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// The proxy's command, where containers have no names.
const PROXY_COMMAND: &str = "pilot-agent";
/// Commands of a process that the runtime is still making, where containers have no names.
const RUNTIME_COMMANDS: [&str; 2] = ["runc", "crun"];

/// Watches until nothing is left to do, or until SIGTERM, which ends the process at once with 0.
pub(crate) fn run(arguments: &Watch) {
    let always = Arc::new(AtomicBool::new(true));
    if let Err(error) = signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGTERM, 0, always) {
        log::warn("SIGTERM will end this process with a failure", &[("error", &error)]);
    }
    log::info(
        "watching",
        &[
            ("await", &arguments.awaited.join(",")),
            ("outlive", &arguments.outlived.join(",")),
            ("restart-policy", &arguments.restart_policy),
        ],
    );
    Watcher::new(arguments, Procfs::new("/proc")).run();
}

/// How far starts can be relied on to be announced.
enum Announcements {
    /// No start was seen yet that tells.
    Unproven(Starts),
    /// A start was seen that had been announced.
    Proven(Starts),
    /// They cannot be listened to, or one was seen that had not been announced.
    None,
}

struct Watcher {
    pod: Pod,
    /// The running processes, by the container's index in the pod.
    processes: Vec<(usize, Process)>,
    procfs: Procfs,
    /// Whether containers can be told apart by name.
    named: bool,
    announcements: Announcements,
    listening_since: Duration,
    /// The last PID given out at the last look.
    last_pid: i32,
    /// When a PID was last given out to a process that had gone before it was looked at.
    unseen_since: Option<Duration>,
    /// PIDs that the runtime is still making containers of, and how many more looks they are worth.
    unready: Vec<(i32, u32)>,
    status_port: u16,
    /// What else is to quit before the proxy, and was not told yet.
    quit: Vec<Endpoint>,
    asked: Option<Asked>,
    state: Option<PathBuf>,
    boot: String,
}

/// The proxy was asked to quit; times are since the machine's boot.
struct Asked {
    first: Duration,
    next: Duration,
    pause: Duration,
}

impl Watcher {
    fn new(arguments: &Watch, procfs: Procfs) -> Self {
        let named = procfs.names_containers();
        if !named {
            log::warn(
                "containers have no names here: every process from outside the pod is awaited, exec sessions too",
                &[],
            );
        }
        Self {
            pod: Pod::new(arguments),
            processes: Vec::new(),
            named,
            announcements: Starts::listen(HOSTS).map_or(Announcements::None, Announcements::Unproven),
            listening_since: now(),
            last_pid: 0,
            unseen_since: None,
            unready: Vec::new(),
            status_port: arguments.status_port,
            quit: arguments.quit.clone(),
            asked: None,
            state: arguments.state.as_ref().map(PathBuf::from),
            boot: procfs.boot_id(),
            procfs,
        }
    }

    fn run(&mut self) {
        self.remember();
        loop {
            let step = self.pod.next(now());
            if step == Step::Look || self.pace(step).is_some() {
                self.look();
            }
            let limit = match self.pod.next(now()) {
                Step::End => break,
                Step::Quit => Some(self.ask().saturating_sub(now())),
                Step::Look | Step::Wait => None,
            };
            let pace = self.pace(self.pod.next(now()));
            self.sleep(limit.into_iter().chain(pace).min());
        }
        self.say_last();
        thread::sleep(STAY_AFTER_PROXY);
    }

    /// The pause until the next look; `None` where nothing needs to be looked for.
    fn pace(&self, step: Step) -> Option<Duration> {
        if self.pod.expects_a_start_soon(now()) || !self.unready.is_empty() {
            return Some(LOOK_EVERY);
        }
        if self.pod.expects_a_start() {
            return Some(LOOK_UNANNOUNCED_EVERY);
        }
        match (step, &self.announcements) {
            (Step::Look, Announcements::Proven(_)) if self.named => Some(LOOK_UNANNOUNCED_EVERY),
            (Step::Look, _) => Some(LOOK_EVERY),
            // Any process may be a container's: an exec session may have been taken for one that is still to come.
            (Step::Wait | Step::Quit, _) if !self.named => Some(LOOK_UNANNOUNCED_EVERY),
            (Step::Wait | Step::Quit | Step::End, _) => None,
        }
    }

    /// Takes up what an earlier run of the shim saw in this pod.
    fn remember(&mut self) {
        let Some(file) = &self.state else { return };
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return log::warn("the state file cannot be read, and is ignored", &[("error", &error)]),
        };
        if memory::read(&mut self.pod, &text, &self.boot, now()).is_none() {
            return log::warn("the state file is not one of ours, and is ignored", &[("file", &file.display())]);
        }
        let file = file.display().to_string();
        // What ran then and runs no more has ended while nobody watched.
        let top = self.procfs.top_processes(self.procfs.pids());
        for index in 0..self.pod.containers.len() {
            let container = &self.pod.containers[index];
            if container.life != Life::Running {
                continue;
            }
            let is_it = |process: &&TopProcess| match &process.attempt {
                Some(attempt) if self.named => container.attempt.as_ref() == Some(&attempt.id),
                _ => container.attempt == Some(unnamed_attempt(process)),
            };
            if let Some(process) = top.iter().find(is_it).and_then(Process::open) {
                self.processes.push((index, process));
            } else {
                self.pod.exited(index, Exit::Unknown, now());
                let name = &self.pod.containers[index].name;
                log::info("container exited", &[("container", name), ("code", &Exit::Unknown)]);
            }
        }
        log::info("started again: took up what was seen before", &[("file", &file)]);
    }

    /// Keeps what was seen for a run of the shim after this one.
    fn keep(&mut self) {
        let Some(file) = &self.state else { return };
        if let Err(error) = memory::store(file, &memory::write(&self.pod, &self.boot)) {
            log::warn("the state file cannot be written, and is given up", &[("error", &error)]);
            self.state = None;
        }
    }

    /// Looks for containers that have started, among the processes that have since the last look.
    fn look(&mut self) {
        let last_pid = self.procfs.last_pid().unwrap_or_default();
        let unready = std::mem::take(&mut self.unready);
        let mut pids: Vec<i32> = unready.iter().map(|&(pid, _)| pid).collect();
        if last_pid == self.last_pid && pids.is_empty() {
            return self.give_up();
        }
        let new = self.last_pid + 1..=last_pid;
        // At the first look, when PIDs began anew, or when too many were given out to ask for each, they are listed.
        let is_listed = self.last_pid == 0 || last_pid < self.last_pid || last_pid - self.last_pid > MANY_PIDS;
        let mut any_unseen = is_listed || new.clone().any(|pid| !self.procfs.exists(pid));
        if is_listed {
            pids = self.procfs.pids();
        } else {
            pids.extend(new);
        }
        self.last_pid = last_pid;
        let found = self.procfs.top_processes(pids);
        // Whatever was there, or came and went, had been announced before, however long this process was kept from running.
        self.hear();
        // One that ended while it was being made (a command that does not exist) had no name yet.
        any_unseen |= unready.iter().any(|(pid, _)| !found.iter().any(|process| process.pid == *pid));
        if any_unseen {
            self.unseen_since = Some(now());
        }
        for process in found {
            if !self.meet(&process) {
                let looks =
                    unready.iter().find(|(pid, _)| *pid == process.pid).map_or(NAMED_WITHIN, |(_, looks)| *looks);
                self.unready.extend(looks.checked_sub(1).map(|looks| (process.pid, looks)));
            }
        }
        self.give_up();
    }

    /// Stops expecting starts that were announced too long ago.
    fn give_up(&mut self) {
        for index in self.pod.give_up(self.unseen_since, now()) {
            let name = &self.pod.containers[index].name;
            log::warn("container came and went unseen", &[("container", name), ("code", &Exit::Unknown)]);
            self.keep();
        }
    }

    /// Takes note of a process from outside the pod: a container's init, unless its start is known already.
    /// Returns false where the runtime is still at making it, so that it is worth another look.
    fn meet(&mut self, process: &TopProcess) -> bool {
        if self.named {
            let Some(Attempt { container, id }) = &process.attempt else { return false };
            // What started before was announced to nobody.
            let is_heard = process.started_at() > self.listening_since;
            let was_expected = self.pod.expects_a_start();
            let met = self.pod.started(container, id, is_heard, now());
            if met.is_some() && is_heard {
                self.judge_announcements(was_expected);
            }
            self.watch(met, process);
        } else if process.pid != std::process::id().cast_signed() {
            let command = self.procfs.command(process.pid).unwrap_or_default();
            if RUNTIME_COMMANDS.iter().any(|runtime| command.starts_with(runtime)) {
                return false;
            }
            let met = self.pod.started_unnamed(&unnamed_attempt(process), command == PROXY_COMMAND, now());
            self.watch(met, process);
        }
        true
    }

    /// A start that was seen shows whether starts are announced here.
    fn judge_announcements(&mut self, was_expected: bool) {
        self.announcements = match std::mem::replace(&mut self.announcements, Announcements::None) {
            Announcements::Unproven(starts) | Announcements::Proven(starts) if was_expected => {
                Announcements::Proven(starts)
            }
            _ => Announcements::None,
        };
    }

    /// Takes note of the starts that were announced.
    fn hear(&mut self) {
        let announced = self.announcements.starts().map_or(0, Starts::take);
        self.pod.announce(announced, now());
    }

    /// Watches the init process of a container that was seen to start.
    fn watch(&mut self, met: Option<usize>, process: &TopProcess) {
        let Some(index) = met else { return };
        let opened = Process::open(process);
        // Kept before it is said, so that whoever read the log knows that it will not be forgotten.
        self.keep();
        log::info("container started", &[("container", &self.pod.containers[index].name), ("pid", &process.pid)]);
        match opened {
            Some(opened) => {
                if matches!(opened, Process::LookedAt { .. }) && self.processes.is_empty() {
                    log::warn("pidfd_open is refused: ends are noticed by looking, and without codes", &[]);
                }
                self.processes.push((index, opened));
            }
            // Seen, and gone before it could be opened.
            None => self.note_end(index, Exit::Unknown),
        }
    }

    /// Sleeps until a container ends, a start is announced, or for as long as given.
    fn sleep(&mut self, limit: Option<Duration>) {
        let mut watched: Vec<usize> = Vec::new();
        let mut fds: Vec<PollFd> = Vec::new();
        for (at, (_, process)) in self.processes.iter().enumerate() {
            if let Some(fd) = process.until_end() {
                watched.push(at);
                fds.push(fd);
            }
        }
        fds.extend(self.announcements.starts().map(Starts::poll_fd));
        let looks = watched.len() < self.processes.len();
        let limit = limit.into_iter().chain(looks.then_some(LOOK_AT_EVERY)).min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        if poll(&mut fds, limit.as_ref()).is_err() {
            return;
        }
        let mut ended: Vec<usize> =
            watched.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(&at, _)| at).collect();
        drop(fds);
        if looks {
            ended.extend((0..self.processes.len()).filter(|&at| self.processes[at].1.has_ended(&self.procfs)));
            ended.sort_unstable();
        }
        let ended: Vec<(usize, Process)> = ended.into_iter().rev().map(|at| self.processes.swap_remove(at)).collect();
        self.note_ends(ended);
        self.hear();
    }

    fn note_ends(&mut self, ended: Vec<(usize, Process)>) {
        // Where no code changes what the end means, the proxy is asked before anybody has reaped the payload.
        let (coded, plain): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(index, _)| self.pod.needs_code(*index));
        for (index, _) in &plain {
            self.pod.exited(*index, Exit::Unknown, now());
        }
        if self.asked.is_none() && self.pod.next(now()) == Step::Quit {
            self.ask();
        }
        for (index, process) in plain.into_iter().chain(coded) {
            self.note_end(index, process.exit());
        }
    }

    fn note_end(&mut self, index: usize, exit: Exit) {
        if self.pod.containers[index].role == Role::Proxy {
            return self.note_proxy_end(index, exit);
        }
        self.pod.exited(index, exit, now());
        self.keep();
        log::info("container exited", &[("container", &self.pod.containers[index].name), ("code", &exit)]);
    }

    fn note_proxy_end(&mut self, index: usize, exit: Exit) {
        if let Some(asked) = self.asked.take() {
            // pilot-agent ends with 0 when it is asked to.
            let meant = if exit == Exit::Unknown { Exit::Code(0) } else { exit };
            self.pod.exited(index, meant, now());
            let after = format!("{}ms", now().saturating_sub(asked.first).as_millis());
            log::info("istio-proxy ended", &[("code", &exit), ("after", &after)]);
        } else {
            self.pod.exited(index, exit, now());
            log::warn("istio-proxy ended before the awaited containers", &[("code", &exit)]);
        }
        self.keep();
    }

    /// Asks the proxy to quit, unless it was asked a moment ago. Returns when it is time to ask again.
    fn ask(&mut self) -> Duration {
        let began = now();
        if let Some(asked) = self.asked.as_ref().filter(|asked| began < asked.next) {
            return asked.next;
        }
        for endpoint in std::mem::take(&mut self.quit) {
            match quit::post(&endpoint) {
                Ok(answer) => log::info("asked to quit", &[("endpoint", &endpoint), ("answer", &answer)]),
                Err(error) => log::warn("did not answer", &[("endpoint", &endpoint), ("error", &error)]),
            }
        }
        let answer = quit::proxy(self.status_port);
        let asked = self.asked.get_or_insert(Asked { first: began, next: began, pause: ASK_AGAIN_AFTER });
        asked.next = now() + if matches!(answer, Ok(Answer::Accepted(_))) { ENDS_WITHIN } else { asked.pause };
        asked.pause = (asked.pause * 2).min(ASK_AGAIN_AT_MOST);
        let done = "awaited containers finished";
        match answer {
            Ok(answer @ (Answer::Accepted(_) | Answer::Closed)) => {
                log::info(&format!("{done}, asked istio-proxy to quit"), &[("answer", &answer)]);
            }
            Ok(answer) => log::warn(&format!("{done}, istio-proxy does not accept to quit"), &[("answer", &answer)]),
            Err(error) => log::warn(&format!("{done}, istio-proxy did not answer"), &[("error", &error)]),
        }
        asked.next
    }

    /// The termination message: how each container ended, in a line.
    fn say_last(&self) {
        let ends = self.pod.containers.iter().map(|container| match container.life {
            Life::Exited { exit, .. } => format!("{}={exit}", container.name),
            Life::Unseen | Life::Running => format!("{}=?", container.name),
        });
        let line = format!("all ended: {}\n", ends.collect::<Vec<_>>().join(" "));
        // The file is there only in a container; nobody misses the line elsewhere.
        if let Ok(mut file) = std::fs::OpenOptions::new().write(true).open(TERMINATION_LOG) {
            let _ = std::io::Write::write_all(&mut file, line.as_bytes());
        }
    }
}

impl Announcements {
    fn starts(&self) -> Option<&Starts> {
        match self {
            Self::Unproven(starts) | Self::Proven(starts) => Some(starts),
            Self::None => None,
        }
    }
}

/// What tells a process from any other of this boot, where containers have no names.
fn unnamed_attempt(process: &TopProcess) -> String {
    format!("{}-{}", process.pid, process.started)
}

/// Time since the machine's boot.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
