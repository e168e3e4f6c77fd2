//! A command that this process is the parent of, as a container's init is to be: signals are passed on to it, orphans
//! are reaped, the terminal is its own, and its exit status can be taken over.

use std::ffi::{OsString, c_int};
use std::fmt;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, kill_process_group, set_child_subreaper, setrlimit, wait,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};

/// The signals that are passed on. The others that this process may get (CHLD, PIPE, URG) are its own.
const PASSED_ON: [c_int; 7] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH];

/// The command, while it runs.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    signals: Signals,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

/// It could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", command.display())]
pub(crate) struct NotStarted {
    command: OsString,
    cause: io::Error,
}

impl Child {
    /// Starts a command in a process group of its own.
    pub(crate) fn start(command: &[OsString]) -> Result<Self, NotStarted> {
        let (program, arguments) = command.split_first().unwrap_or((const { &OsString::new() }, &[]));
        let refuse = |cause| NotStarted { command: program.clone(), cause };
        let signals = Signals::take().map_err(refuse)?;
        // Where this is not PID 1, what the command leaves behind still becomes ours to reap.
        let _ = set_child_subreaper(Some(rustix::process::getpid()));
        let child = process::Command::new(program).args(arguments).process_group(0).spawn().map_err(refuse)?;
        let pid = Pid::from_child(&child);
        hand_over_terminal(pid);
        Ok(Self { pid, signals })
    }

    /// For a poll that wakes when there is something to [`attend`](Self::attend) to.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.signals.arrived, PollFlags::IN)
    }

    /// Passes signals on, and reaps whatever has ended. Returns how the command did, once it has.
    pub(crate) fn attend(&mut self) -> Option<Ended> {
        for signal in self.signals.pending() {
            self.signal(signal);
        }
        let mut ended = None;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid {
                let by_signal = status.terminating_signal().map(Ended::Signal);
                ended = by_signal.or(status.exit_status().map(Ended::Status));
            }
        }
        ended
    }

    /// Asks the command to end.
    pub(crate) fn terminate(&self) {
        self.signal(SIGTERM);
    }

    fn signal(&self, signal: c_int) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // It has ended: the next reaping tells.
            let _ = kill_process(self.pid, signal);
        }
    }
}

/// Where standard input is our terminal, the command's group becomes the one that reads it and gets its signals.
fn hand_over_terminal(group: Pid) {
    let stdin = io::stdin();
    if tcgetpgrp(&stdin).is_ok() && tcsetpgrp(&stdin, group).is_ok() {
        // It may have read too early, and was stopped for that.
        let _ = kill_process_group(group, Signal::CONT);
    }
}

impl NotStarted {
    /// The status by which shells tell: 127 where there is no such command, 126 where it cannot be run.
    pub(crate) fn status(&self) -> Ended {
        Ended::Status(if self.cause.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
    }
}

impl Ended {
    /// The code that the kubelet shows.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Ends this process in the same way. PID 1 cannot die by a signal of its own: there the code says it.
    pub(crate) fn take_over(self) -> ! {
        if let Self::Signal(signal) = self
            && process::id() != 1
        {
            // One core dump, the command's own, is enough.
            let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        process::exit(self.code())
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code().fmt(f)
    }
}

/// The signals that have arrived.
#[derive(Debug)]
struct Signals {
    arrived: UnixStream,
    flags: Vec<(c_int, Arc<AtomicBool>)>,
}

impl Signals {
    fn take() -> io::Result<Self> {
        let (arrived, wake) = UnixStream::pair()?;
        arrived.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGCHLD, wake.try_clone()?)?;
        let mut flags = Vec::with_capacity(PASSED_ON.len());
        for signal in PASSED_ON {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
            flags.push((signal, flag));
        }
        Ok(Self { arrived, flags })
    }

    /// Those to pass on that have arrived since the last call.
    fn pending(&mut self) -> Vec<c_int> {
        let mut bytes = [0; 64];
        while matches!(self.arrived.read(&mut bytes), Ok(read) if read == bytes.len()) {}
        let is_pending = |(_, flag): &&(c_int, Arc<AtomicBool>)| flag.swap(false, Ordering::SeqCst);
        self.flags.iter().filter(is_pending).map(|(signal, _)| *signal).collect()
    }
}
