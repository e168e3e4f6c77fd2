//! Runs a command as its parent, like a container's init process: forwards signals, hands over the terminal, reaps
//! orphans, and exits like the command.

use std::ffi::{OsString, c_int};
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process;

use nix::libc::{SIGCHLD, SIGTERM};
use nix::poll::{PollFd, PollFlags};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, tcgetpgrp, tcsetpgrp};

use crate::observe::exit_code;
use crate::syscalls::{default_sigchld, kill, unblock_signals_in, wait_any};

/// Signals that are not forwarded: those that a fault of this process raises, and those that stop a background process
/// at its terminal. SIGCHLD is waited for and not forwarded; SIGKILL and SIGSTOP cannot be blocked.
const NOT_FORWARDED: [Signal; 9] = [
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGSYS,
    Signal::SIGTRAP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Holds the command while it runs.
#[derive(Debug)]
pub(crate) struct Child {
    pid: i32,
    signals: SignalFd,
    got_sigterm: bool,
}

/// Holds the command's wait status, as wait(2) encodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChildExit(c_int);

/// Reports a command that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", command.display())]
pub(crate) struct StartError {
    command: OsString,
    cause: io::Error,
}

impl Child {
    /// Starts a command in a process group of its own.
    pub(crate) fn start(command: &[OsString]) -> Result<Self, StartError> {
        let (program, arguments) = command.split_first().unwrap_or((const { &OsString::new() }, &[]));
        let failed = |cause| StartError { command: program.clone(), cause };
        let mut signals = SigSet::all();
        for signal in NOT_FORWARDED {
            signals.remove(signal);
        }
        // If this process inherited an ignored SIGCHLD, the kernel would discard exit statuses.
        default_sigchld();
        let blocked = signals.thread_block();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals =
            blocked.and_then(|()| SignalFd::with_flags(&signals, flags)).map_err(|errno| failed(errno.into()))?;
        // Orphans of the command become children of this process also if it is not PID 1.
        let _ = set_child_subreaper(true);
        let mut command = process::Command::new(program);
        let child = unblock_signals_in(command.args(arguments).process_group(0)).spawn().map_err(failed)?;
        let pid = child.id().cast_signed();
        hand_over_terminal(Pid::from_raw(pid));
        Ok(Self { pid, signals, got_sigterm: false })
    }

    /// Returns the descriptor for a poll that wakes when a signal has arrived.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)
    }

    /// Forwards signals and reaps ended children. Returns the command's exit once it has ended.
    pub(crate) fn forward_signals_and_reap(&mut self) -> Option<ChildExit> {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let signal = info.ssi_signo.cast_signed();
            self.got_sigterm |= signal == SIGTERM;
            if signal != SIGCHLD {
                kill(self.pid, signal);
            }
        }
        let mut exit = None;
        while let Some((pid, status)) = wait_any() {
            if pid == self.pid {
                exit = Some(ChildExit(status));
            }
        }
        exit
    }

    /// Returns true if SIGTERM was forwarded: the kubelet ends the container.
    pub(crate) fn got_sigterm(&self) -> bool {
        self.got_sigterm
    }

    /// Sends a signal to the command.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid, signal as c_int);
    }
}

/// Executes a command in this process. Returns only if that failed.
pub(crate) fn become_command(command: &[OsString]) -> StartError {
    let (program, arguments) = command.split_first().unwrap_or((const { &OsString::new() }, &[]));
    StartError { command: program.clone(), cause: process::Command::new(program).args(arguments).exec() }
}

/// Makes the command's group the foreground group, if standard input is a terminal.
fn hand_over_terminal(group: Pid) {
    let stdin = io::stdin();
    if tcgetpgrp(&stdin).is_ok() && tcsetpgrp(&stdin, group).is_ok() {
        // The kernel stops a command that read before it was in the foreground.
        let _ = killpg(group, Signal::SIGCONT);
    }
}

impl StartError {
    /// Returns the status that shells use: 127 if the command does not exist, 126 if it cannot be run.
    pub(crate) fn exit(&self) -> ChildExit {
        ChildExit::with_code(if self.cause.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
    }
}

impl ChildExit {
    pub(crate) const fn with_code(code: u8) -> Self {
        Self((code as c_int) << 8)
    }

    /// Returns the signal that ended the command.
    pub(crate) fn signal(self) -> Option<c_int> {
        Some(self.0 & 0x7f).filter(|&signal| signal != 0)
    }

    /// Returns the code that the kubelet shows.
    pub(crate) fn code(self) -> i32 {
        exit_code(self.0)
    }

    /// Ends this process in the same way. PID 1 cannot die by its own signal, so there the exit code shows it.
    pub(crate) fn exit_like_child(self) -> ! {
        if let Some(signal) = self.signal()
            && process::id() != 1
        {
            // One core dump, the command's own, is enough.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        process::exit(self.code())
    }
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code().fmt(f)
    }
}
