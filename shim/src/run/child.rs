//! Runs a command as its parent, like a container's init process: forwards signals, hands over the terminal, reaps
//! orphans, and exits like the command.

use std::ffi::{OsString, c_int};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, ExitStatus};

use nix::libc::{SIGCHLD, SIGPIPE, SIGTERM};
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
    /// True if SIGTERM was forwarded: the kubelet ends the container.
    pub(crate) got_sigterm: bool,
}

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
        let failed = |cause| StartError { command: command[0].clone(), cause };
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
        let child = unblock_signals_in(process_of(command).process_group(0)).spawn().map_err(failed)?;
        let pid = child.id().cast_signed();
        hand_over_terminal(Pid::from_raw(pid));
        Ok(Self { pid, signals, got_sigterm: false })
    }

    /// Returns the descriptor for a poll that wakes when a signal has arrived.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)
    }

    /// Forwards signals and reaps ended children. Returns the command's exit once it has ended.
    pub(crate) fn forward_signals_and_reap(&mut self) -> Option<ExitStatus> {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let signal = info.ssi_signo.cast_signed();
            self.got_sigterm |= signal == SIGTERM;
            // Raised by the shim's own log, whose reader is gone.
            let is_own = signal == SIGPIPE && info.ssi_pid == process::id();
            if signal != SIGCHLD && !is_own {
                kill(self.pid, signal);
            }
        }
        let mut exit = None;
        while let Some((pid, status)) = wait_any() {
            if pid == self.pid {
                exit = Some(status);
            }
        }
        exit
    }

    /// Sends a signal to the command.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid, signal as c_int);
    }
}

/// Executes a command in this process. Returns only if that failed.
pub(crate) fn become_command(command: &[OsString]) -> StartError {
    StartError { command: command[0].clone(), cause: process_of(command).exec() }
}

/// Returns the process of a command, which has one word at least.
fn process_of(command: &[OsString]) -> process::Command {
    let mut process = process::Command::new(&command[0]);
    process.args(&command[1..]);
    process
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
    /// Returns the exit code that shells use: 127 if the command does not exist, 126 if it cannot be run.
    pub(crate) fn exit_code(&self) -> u8 {
        if self.cause.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// Ends this process as a command has ended. PID 1 cannot die by its own signal, so there the exit code shows it.
pub(crate) fn exit_like(status: ExitStatus) -> ! {
    if let Some(signal) = status.signal()
        && process::id() != 1
    {
        // One core dump, the command's own, is enough.
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    process::exit(exit_code(status))
}
