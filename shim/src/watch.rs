//! `aux-shim watch`: sees the pod's containers start and end, and does what `decide` says.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use contract::args::Watch;
use contract::policy::RestartPolicy;
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use crate::decide::{self, Exit, Life, Pod, Step};
use crate::log;
use crate::pidfd::Pidfd;
use crate::procfs::{Attempt, Procfs, TopProcess};
use crate::quit;

/// Pause between two looks while something may start. The runtime makes a container's init some tens of
/// milliseconds before it lets it run, so this meets a payload however short.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A process that has no container's mounts by then is none.
const NAMED_WITHIN: u32 = 400;
/// Pause before the proxy is asked again, doubled each time up to [`ASK_AGAIN_AT_MOST`].
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_secs(30);
/// The kubelet inspects containers one after the other: were the shim gone before it has seen the proxy's end, it would
/// start the shim once more.
const STAY_AFTER_PROXY: Duration = Duration::from_millis(100);

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

/// A container of the pod, and its running process.
struct Container {
    name: String,
    life: Life,
    /// The start that was seen last.
    attempt: Option<String>,
    process: Option<Pidfd>,
}

impl Container {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), life: Life::Unseen, attempt: None, process: None }
    }
}

struct Watcher {
    policy: RestartPolicy,
    status_port: u16,
    procfs: Procfs,
    /// The awaited ones, then the outlived ones, then the proxy: the order in which `lives` splits them.
    containers: Vec<Container>,
    awaited: usize,
    last_pid: Option<i32>,
    /// How many more looks an unnamed process is worth.
    patience: u32,
    asked: Option<Asked>,
}

/// The proxy was asked to quit.
struct Asked {
    first: Instant,
    next: Instant,
    pause: Duration,
}

impl Watcher {
    fn new(arguments: &Watch, procfs: Procfs) -> Self {
        let names = arguments.awaited.iter().chain(&arguments.outlived).chain(std::iter::once(&arguments.proxy));
        Self {
            policy: arguments.restart_policy,
            status_port: arguments.status_port,
            procfs,
            containers: names.map(|name| Container::new(name)).collect(),
            awaited: arguments.awaited.len(),
            last_pid: None,
            patience: 0,
            asked: None,
        }
    }

    fn run(&mut self) {
        loop {
            match self.next() {
                Step::Look => {
                    self.look();
                    if self.next() == Step::Look {
                        self.sleep(Some(LOOK_EVERY));
                    }
                }
                Step::Wait => self.sleep(None),
                Step::Quit => {
                    let until = self.ask();
                    self.sleep(Some(until.saturating_duration_since(Instant::now())));
                }
                Step::End => break,
            }
        }
        thread::sleep(STAY_AFTER_PROXY);
    }

    fn next(&self) -> Step {
        let lives: Vec<Life> = self.containers.iter().map(|container| container.life).collect();
        let (awaited, others) = lives.split_at(self.awaited);
        let (&proxy, outlived) = others.split_last().unwrap_or((&Life::Unseen, &[]));
        decide::next(&Pod { policy: self.policy, awaited, outlived, proxy })
    }

    /// Looks for containers that have started, where any process has.
    fn look(&mut self) {
        let last_pid = self.procfs.last_pid();
        if last_pid.is_some() && last_pid == self.last_pid && self.patience == 0 {
            return;
        }
        if last_pid != self.last_pid {
            self.patience = NAMED_WITHIN;
        }
        self.last_pid = last_pid;
        let mut unnamed = false;
        for process in self.procfs.top_processes() {
            match &process.attempt {
                Some(attempt) => self.meet(&process, attempt),
                None => unnamed = true,
            }
        }
        self.patience = if unnamed { self.patience.saturating_sub(1) } else { 0 };
    }

    /// Takes note of a top process: a container's init, unless its start is known already.
    fn meet(&mut self, process: &TopProcess, attempt: &Attempt) {
        let Some(container) = self.containers.iter_mut().find(|container| container.name == attempt.container) else {
            return;
        };
        if container.attempt.as_ref() == Some(&attempt.id) {
            return;
        }
        container.attempt = Some(attempt.id.clone());
        match Pidfd::open(process.pid) {
            Ok(pidfd) => {
                container.life = Life::Running;
                container.process = Some(pidfd);
                log::info("container started", &[("container", &container.name), ("pid", &process.pid)]);
            }
            // Seen, and gone before it could be opened.
            Err(Errno::SRCH) => {
                container.life = Life::Exited(Exit::Unknown);
                log::info("container exited", &[("container", &container.name), ("code", &"unknown")]);
            }
            Err(error) => {
                log::warn("container cannot be watched", &[("container", &container.name), ("error", &error)]);
            }
        }
    }

    /// Sleeps until a container ends, or for as long as given.
    fn sleep(&mut self, limit: Option<Duration>) {
        let running: Vec<usize> =
            (0..self.containers.len()).filter(|&i| self.containers[i].process.is_some()).collect();
        let mut fds: Vec<PollFd> =
            running.iter().filter_map(|&i| self.containers[i].process.as_ref().map(Pidfd::until_end)).collect();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        if poll(&mut fds, limit.as_ref()).is_err() {
            return;
        }
        let ended: Vec<usize> =
            running.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(&i, _)| i).collect();
        drop(fds);
        self.note_ends(&ended);
    }

    fn note_ends(&mut self, ended: &[usize]) {
        let processes: Vec<(usize, Pidfd)> =
            ended.iter().filter_map(|&i| self.containers[i].process.take().map(|process| (i, process))).collect();
        // Under Never the code decides nothing: the proxy is asked before anybody has reaped the payload.
        for (i, process) in &processes {
            self.containers[*i].life = Life::Exited(match self.policy {
                RestartPolicy::Never => Exit::Unknown,
                RestartPolicy::OnFailure => process.exit(),
            });
        }
        if self.policy == RestartPolicy::Never && self.asked.is_none() && self.next() == Step::Quit {
            self.ask();
        }
        for (i, process) in processes {
            self.report_end(i, &process);
        }
    }

    fn report_end(&mut self, index: usize, process: &Pidfd) {
        let is_proxy = index + 1 == self.containers.len();
        let container = &mut self.containers[index];
        if container.life == Life::Exited(Exit::Unknown) {
            container.life = Life::Exited(process.exit());
        }
        let Life::Exited(exit) = container.life else { return };
        let code: &dyn std::fmt::Display = match &exit {
            Exit::Code(code) => code,
            Exit::Unknown => &"unknown",
        };
        if !is_proxy {
            log::info("container exited", &[("container", &container.name), ("code", code)]);
        } else if let Some(asked) = self.asked.take() {
            let after = format!("{}ms", asked.first.elapsed().as_millis());
            log::info("istio-proxy ended", &[("code", code), ("after", &after)]);
        } else {
            log::warn("istio-proxy ended before the awaited containers", &[("code", code)]);
        }
    }

    /// Asks the proxy to quit, unless it was asked a moment ago. Returns when it is time to ask again.
    fn ask(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(asked) = self.asked.as_ref().filter(|asked| now < asked.next) {
            return asked.next;
        }
        let answer = quit::post(self.status_port);
        let asked = self.asked.get_or_insert(Asked { first: now, next: now, pause: ASK_AGAIN_AFTER });
        asked.next = Instant::now() + asked.pause;
        asked.pause = (asked.pause * 2).min(ASK_AGAIN_AT_MOST);
        match answer {
            Ok(status) => log::info("awaited containers finished, asked istio-proxy to quit", &[("answer", &status)]),
            Err(error) => log::warn("awaited containers finished, istio-proxy did not answer", &[("error", &error)]),
        }
        asked.next
    }
}
