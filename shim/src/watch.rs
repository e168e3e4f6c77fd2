//! `aux-shim watch`: sees the pod's containers start and end, and does what `decide` says.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use contract::args::Watch;
use contract::endpoint::Endpoint;
use rustix::event::{PollFd, Timespec, poll};

use crate::clock::now;
use crate::decide::{Exit, Life, Pod, Role, Step};
use crate::log;
use crate::lookout::{Lookout, Sighting};
use crate::memory;
use crate::process::Process;
use crate::procfs::Procfs;
use crate::quit::{self, Answer};

/// Pause between two looks at processes that the kernel does not watch for us.
const LOOK_AT_EVERY: Duration = Duration::from_millis(500);
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

struct Watcher {
    pod: Pod,
    /// The running processes, by the container's index in the pod.
    processes: Vec<(usize, Process)>,
    lookout: Lookout,
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
        Self {
            pod: Pod::new(arguments),
            processes: Vec::new(),
            boot: procfs.boot_id(),
            lookout: Lookout::new(procfs),
            status_port: arguments.status_port,
            quit: arguments.quit.clone(),
            asked: None,
            state: arguments.state.as_ref().map(PathBuf::from),
        }
    }

    fn run(&mut self) {
        self.remember();
        loop {
            if self.lookout.pace(&self.pod).is_some() {
                self.look();
            }
            let until = match self.pod.next(now()) {
                Step::End => break,
                Step::Quit => Some(self.ask().saturating_sub(now())),
                Step::Look | Step::Wait => None,
            };
            self.sleep(until.into_iter().chain(self.lookout.pace(&self.pod)).min());
        }
        self.say_last();
        thread::sleep(STAY_AFTER_PROXY);
    }

    /// Looks for containers that have started, and watches them.
    fn look(&mut self) {
        for sighting in self.lookout.look(&mut self.pod) {
            self.watch(&sighting);
        }
        for index in self.lookout.give_up(&mut self.pod) {
            let name = &self.pod.containers[index].name;
            log::warn("container came and went unseen", &[("container", name), ("code", &Exit::Unknown)]);
            self.keep();
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
        let top = self.lookout.procfs().top_processes(self.lookout.procfs().pids());
        for index in 0..self.pod.containers.len() {
            let container = &self.pod.containers[index];
            let (Life::Running, Some(attempt)) = (container.life, &container.attempt) else { continue };
            let process = top.iter().find(|process| self.lookout.is_start(process, attempt));
            if let Some(process) = process.and_then(Process::open) {
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

    /// Watches the init process of a container that has started.
    fn watch(&mut self, Sighting { index, process }: &Sighting) {
        let index = *index;
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
        fds.extend(self.lookout.poll_fd());
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
            ended.extend((0..self.processes.len()).filter(|&at| self.processes[at].1.has_ended(self.lookout.procfs())));
            ended.sort_unstable();
        }
        let ended: Vec<(usize, Process)> = ended.into_iter().rev().map(|at| self.processes.swap_remove(at)).collect();
        self.note_ends(ended);
        self.lookout.hear(&mut self.pod);
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
