//! `aux-shim watch` and `aux-shim supervise`: sees the pod's containers start and end, and does what `decide` says.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use contract::args::Watch;
use rustix::event::{PollFd, Timespec, poll};

use crate::asking::Asking;
use crate::child::{Child, Ended};
use crate::clock::now;
use crate::decide::{Exit, Life, Pod, Role, Step};
use crate::locks::{Locks, Wrapped};
use crate::log;
use crate::lookout::{Lookout, Sighting};
use crate::memory;
use crate::process::Process;
use crate::procfs::Procfs;

/// Pause between two looks at processes that the kernel does not watch for us.
const LOOK_AT_EVERY: Duration = Duration::from_millis(500);
/// The runtime tells of ends one by one: were the shim's told before the proxy's, the kubelet could see the one without the
/// other, and would start the shim once more. Each millisecond here is one in which the kubelet may look in vain, and
/// then it looks again a second later. So it stays so many times as long as the runtime took to reap, which tells how
/// busy the node is (20 ms for all had 13 shims of 1,000 started again, 30 pods at a time) …
const STAY_TIMES_REAPING: u32 = 20;
/// … but at least and at most this.
const STAY_AT_LEAST: Duration = Duration::from_millis(20);
const STAY_AT_MOST: Duration = Duration::from_millis(500);
/// Where the kubelet reads a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Watches until nothing is left to do, or until SIGTERM, which ends the process at once with 0.
pub(crate) fn run(arguments: &Watch) {
    let always = Arc::new(AtomicBool::new(true));
    if let Err(error) = signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGTERM, 0, always) {
        log::warn("SIGTERM will end this process with a failure", &[("error", &error)]);
    }
    let mut watcher = Watcher::new(arguments, Procfs::new("/proc"));
    watcher.remember();
    watcher.run();
    watcher.say_last();
    thread::sleep((watcher.slowest_reaping * STAY_TIMES_REAPING).clamp(STAY_AT_LEAST, STAY_AT_MOST));
}

/// Watches as the parent of the proxy's command, until that has ended. Returns how this process is to end.
pub(crate) fn supervise(arguments: &Watch, command: &[OsString]) -> Ended {
    let procfs = Procfs::new("/proc");
    let attempt = procfs.own_attempt();
    // Watching begins before the command does: the kubelet starts other containers once this one runs.
    let mut watcher = Watcher::new(arguments, procfs);
    watcher.remember();
    match Child::start(command) {
        Ok(child) => {
            let proxy = watcher.pod.proxy_started(&attempt, now());
            watcher.keep();
            let ended = watcher.supervise(child);
            watcher.note_end(proxy, Exit::Code(ended.code()));
            watcher.say_last();
            ended
        }
        Err(error) => {
            eprintln!("aux-shim: {error}");
            error.status()
        }
    }
}

struct Watcher {
    pod: Pod,
    sight: Sight,
    /// The running processes that are seen, by the container's index in the pod.
    processes: Vec<(usize, Process)>,
    asking: Asking,
    state: Option<PathBuf>,
    boot: String,
    /// The longest that the runtime took to reap a process that had ended.
    slowest_reaping: Duration,
}

/// How containers are seen.
enum Sight {
    /// In the PID namespace that they share.
    Processes(Lookout),
    /// By what their wrappers tell.
    Locks(Locks),
}

impl Watcher {
    fn new(arguments: &Watch, procfs: Procfs) -> Self {
        let watcher = Self {
            pod: Pod::new(arguments),
            processes: Vec::new(),
            boot: procfs.boot_id(),
            sight: match &arguments.locks {
                Some(folder) => Sight::Locks(Locks::watch(Path::new(folder))),
                None => Sight::Processes(Lookout::new(procfs)),
            },
            asking: Asking::new(arguments),
            state: arguments.state.as_ref().map(PathBuf::from),
            slowest_reaping: Duration::ZERO,
        };
        // Said once it is so: whatever starts from now on is heard of.
        log::info(
            "watching",
            &[
                ("await", &arguments.awaited.join(",")),
                ("outlive", &arguments.outlived.join(",")),
                ("restart-policy", &arguments.restart_policy),
            ],
        );
        watcher
    }

    fn run(&mut self) {
        loop {
            let pace = self.look();
            let until = match self.pod.next(now()) {
                Step::End => return,
                Step::Quit => {
                    self.ask();
                    Some(self.asking.next().saturating_sub(now()))
                }
                Step::Look | Step::Wait => None,
            };
            self.sleep(until.into_iter().chain(pace).min(), None);
        }
    }

    /// Watches until the proxy's command has ended.
    fn supervise(&mut self, mut child: Child) -> Ended {
        loop {
            if let Some(ended) = child.attend() {
                return self.as_it_counts(ended);
            }
            let pace = self.look();
            let is_over = self.pod.next(now()) == Step::Quit;
            if is_over && !self.ask() {
                log::info("sent SIGTERM to istio-proxy", &[]);
                child.terminate();
            }
            let until = is_over.then(|| self.asking.next().saturating_sub(now()));
            self.sleep(until.into_iter().chain(pace).min(), Some(&child));
        }
    }

    /// How the proxy's end is to count for the kubelet.
    fn as_it_counts(&self, ended: Ended) -> Ended {
        let counts = match (self.asking.has_begun(), ended) {
            // It was asked to end, and did: the pod has not failed for that.
            (true, Ended::Signal(signal_hook::consts::SIGTERM)) => Ended::Status(0),
            // pilot-agent ends so when Envoy has crashed, or when the kubelet gave up waiting for it to be ready.
            (false, Ended::Status(0)) if self.pod.proxy_returns_only_after_failure() => Ended::Status(1),
            (_, ended) => ended,
        };
        if counts != ended {
            log::info("istio-proxy's end counts as another", &[("code", &ended), ("as", &counts)]);
        }
        counts
    }

    /// Looks for containers that have started, where that is due, and watches them. Returns the pause until the next look.
    fn look(&mut self) -> Option<Duration> {
        self.pace()?;
        match &mut self.sight {
            Sight::Processes(lookout) => {
                let seen = lookout.look(&mut self.pod);
                for sighting in seen.starts {
                    self.watch(sighting);
                }
                for process in seen.nameless {
                    self.note_nameless(&process);
                }
                self.give_up();
            }
            Sight::Locks(locks) => {
                let told = locks.look(&self.pod);
                self.note_told(told);
            }
        }
        self.pace()
    }

    fn pace(&self) -> Option<Duration> {
        match &self.sight {
            Sight::Processes(lookout) => lookout.pace(&self.pod),
            Sight::Locks(locks) => locks.pace(),
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
        self.meet_again();
        log::info("started again: took up what was seen before", &[("file", &file)]);
    }

    /// Of the containers that ran when they were seen last: which of them run still.
    fn meet_again(&mut self) {
        // A lock tells by itself.
        let Sight::Processes(lookout) = &self.sight else { return };
        let top = lookout.procfs().top_processes(lookout.procfs().pids());
        for index in 0..self.pod.containers.len() {
            let container = &self.pod.containers[index];
            let (Life::Running, Some(attempt)) = (container.life, &container.attempt) else { continue };
            let process = top.iter().find(|process| lookout.is_start(process, attempt));
            if let Some(process) = process.and_then(Process::open) {
                self.processes.push((index, process));
            } else {
                self.pod.exited(index, Exit::Unknown, now());
                let name = &self.pod.containers[index].name;
                log::info("container exited", &[("container", name), ("code", &Exit::Unknown)]);
            }
        }
    }

    /// Keeps what was seen for a run of the shim after this one.
    fn keep(&mut self) {
        let Some(file) = &self.state else { return };
        if let Err(error) = memory::store(file, &memory::write(&self.pod, &self.boot)) {
            log::warn("the state file cannot be written, and is given up", &[("error", &error)]);
            self.state = None;
        }
    }

    /// Watches the init process of a container that has started.
    fn watch(&mut self, Sighting { index, process, opened }: Sighting) {
        let opened = opened.or_else(|| Process::open(&process));
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

    /// Takes note of a container that had ended before it was seen with its name.
    fn note_nameless(&mut self, process: &Process) {
        let Some(index) = self.pod.came_and_went(now()) else { return };
        // As for others: where no code changes what the end means, the proxy is asked before anybody has reaped it.
        if !self.pod.needs_code(index) {
            self.ask_at_once();
        }
        let exit = self.exit_of(process);
        self.pod.exited(index, exit, now());
        self.keep();
        log::info("container came and went", &[("container", &self.pod.containers[index].name), ("code", &exit)]);
    }

    /// Stops expecting starts that were announced too long ago.
    fn give_up(&mut self) {
        let Sight::Processes(lookout) = &self.sight else { return };
        for index in lookout.give_up(&mut self.pod) {
            let name = &self.pod.containers[index].name;
            log::warn("container came and went unseen", &[("container", name), ("code", &Exit::Unknown)]);
            self.keep();
        }
    }

    /// Takes note of what wrapped containers tell.
    fn note_told(&mut self, told: Vec<(usize, Wrapped)>) {
        let mut ends = Vec::new();
        for (index, Wrapped { attempt, exit }) in told {
            let name = self.pod.containers[index].name.clone();
            if self.pod.started(&name, &attempt, false, now()).is_some() {
                self.keep();
                log::info("container started", &[("container", &name)]);
            }
            if let (Some(exit), Life::Running) = (exit, self.pod.containers[index].life) {
                self.pod.exited(index, exit, now());
                ends.push((index, exit));
            }
        }
        self.ask_at_once();
        for (index, exit) in ends {
            self.note_end(index, exit);
        }
    }

    /// Sleeps until a container ends, a start is announced, the child wants something, or for as long as given.
    fn sleep(&mut self, limit: Option<Duration>, child: Option<&Child>) {
        let mut watched: Vec<usize> = Vec::new();
        let mut fds: Vec<PollFd> = Vec::new();
        for (at, (_, process)) in self.processes.iter().enumerate() {
            if let Some(fd) = process.until_end() {
                watched.push(at);
                fds.push(fd);
            }
        }
        match &self.sight {
            Sight::Processes(lookout) => fds.extend(lookout.poll_fds()),
            Sight::Locks(locks) => fds.extend(locks.poll_fd()),
        }
        fds.extend(child.map(Child::poll_fd));
        let must_look = watched.len() < self.processes.len();
        let limit = limit.into_iter().chain(must_look.then_some(LOOK_AT_EVERY)).min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        if poll(&mut fds, limit.as_ref()).is_err() {
            return;
        }
        let mut ended: Vec<usize> =
            watched.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(&at, _)| at).collect();
        drop(fds);
        if let (true, Sight::Processes(lookout)) = (must_look, &self.sight) {
            ended.extend((0..self.processes.len()).filter(|&at| self.processes[at].1.has_ended(lookout.procfs())));
            ended.sort_unstable();
            ended.dedup();
        }
        let ended: Vec<(usize, Process)> = ended.into_iter().rev().map(|at| self.processes.swap_remove(at)).collect();
        self.note_ends(ended);
        match &mut self.sight {
            Sight::Processes(lookout) => lookout.hear(&mut self.pod),
            Sight::Locks(locks) => locks.hear(),
        }
    }

    fn note_ends(&mut self, ended: Vec<(usize, Process)>) {
        // Where no code changes what the end means, the proxy is asked before anybody has reaped the payload.
        let (coded, plain): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(index, _)| self.pod.needs_code(*index));
        for (index, _) in &plain {
            self.pod.exited(*index, Exit::Unknown, now());
        }
        self.ask_at_once();
        for (index, process) in plain.into_iter().chain(coded) {
            let exit = self.exit_of(&process);
            self.note_end(index, exit);
        }
    }

    /// How an ended process ended, once it has been reaped.
    fn exit_of(&mut self, process: &Process) -> Exit {
        let ended = now();
        let exit = process.exit();
        self.slowest_reaping = self.slowest_reaping.max(now().saturating_sub(ended));
        exit
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
        if let Some(after) = self.asking.finish() {
            // pilot-agent ends with 0 when it is asked to.
            let meant = if exit == Exit::Unknown { Exit::Code(0) } else { exit };
            self.pod.exited(index, meant, now());
            let after = format!("{}ms", after.as_millis());
            log::info("istio-proxy ended", &[("code", &exit), ("after", &after)]);
        } else {
            self.pod.exited(index, exit, now());
            log::warn("istio-proxy ended before the awaited containers", &[("code", &exit)]);
        }
        self.keep();
    }

    /// Asks the proxy to quit, unless it was asked a moment ago. Returns whether it could be asked.
    fn ask(&mut self) -> bool {
        now() < self.asking.next() || self.asking.ask()
    }

    /// Asks the proxy, where that is due and it has not been asked: nothing else comes first.
    fn ask_at_once(&mut self) {
        if !self.asking.has_begun() && self.pod.next(now()) == Step::Quit {
            self.asking.ask();
        }
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
