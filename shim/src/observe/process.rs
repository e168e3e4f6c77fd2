//! Watches a process of a sibling container for its end, and for its exit code once its parent has reaped it.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::procfs::Procfs;
use crate::syscalls::{pidfd_open, pidfd_wait_status};

/// Interval at which `/proc` is checked for the end of a process without a pidfd.
const PROC_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which an ended process is checked for its reaping, which kernels before 6.9 do not report.
const REAP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Holds a process that was seen running.
#[derive(Debug)]
pub(crate) struct Process {
    pub(super) pid: i32,
    /// Clock ticks between the machine's boot and its start. PID and start time together identify a process.
    pub(super) started: u64,
    /// `None` if `pidfd_open` failed: kernels before 5.3, old seccomp profiles, no memory.
    pidfd: Option<OwnedFd>,
    has_ended: bool,
}

/// A change of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessEvent {
    /// The process has ended; its parent has not reaped it.
    Ended,
    /// The process has been reaped. The exit code is `None` if the kernel does not report it.
    Reaped(Option<i32>),
}

impl Process {
    /// Opens the process with this PID and start time; `None` if it does not exist.
    pub(crate) fn open(pid: i32, started: u64, procfs: &Procfs) -> Option<Self> {
        let pidfd = pidfd_open(pid).ok();
        // An error of pidfd_open does not prove that the process is gone, and the PID may have been reused: /proc shows it.
        (!procfs.is_gone(pid, started)).then_some(Self { pid, started, pidfd, has_ended: false })
    }

    /// Returns what happened since the last call.
    pub(crate) fn check(&mut self, procfs: &Procfs) -> Option<ProcessEvent> {
        let is_gone = || procfs.is_gone(self.pid, self.started);
        let Some(pidfd) = &self.pidfd else { return is_gone().then_some(ProcessEvent::Reaped(None)) };
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::ZERO).ok().and_then(|_| fds[0].revents()).unwrap_or(PollFlags::empty());
        let has_ended = self.has_ended || ready.contains(PollFlags::POLLIN);
        if ready.contains(PollFlags::POLLHUP) || (has_ended && is_gone()) {
            return Some(ProcessEvent::Reaped(pidfd_wait_status(pidfd).map(exit_code)));
        }
        (has_ended && !std::mem::replace(&mut self.has_ended, has_ended)).then_some(ProcessEvent::Ended)
    }

    /// Returns true if the process has ended, reaped or not.
    pub(super) fn has_ended(&mut self, procfs: &Procfs) -> bool {
        self.has_ended || self.check(procfs).is_some()
    }

    /// Returns the descriptor for a poll that wakes at the end, and then at the reaping if the kernel reports it.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let events = if self.has_ended { PollFlags::empty() } else { PollFlags::POLLIN };
        self.pidfd.as_ref().map(|pidfd| PollFd::new(pidfd.as_fd(), events))
    }

    /// Returns the longest wait until the next [`check`](Self::check).
    pub(crate) fn poll_interval(&self) -> Option<Duration> {
        match &self.pidfd {
            None => Some(PROC_POLL_INTERVAL),
            Some(_) => self.has_ended.then_some(REAP_POLL_INTERVAL),
        }
    }
}

/// Returns the exit code that the kubelet shows: the exit status, or 128 + n if signal n ended the process.
pub(crate) fn exit_code(wait_status: c_int) -> i32 {
    match wait_status & 0x7f {
        0 => (wait_status >> 8) & 0xff,
        signal => 128 + signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn kernel_reports_codes() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(15))
    }

    /// A shell that runs a command when its standard input is closed.
    fn shell(script: &str) -> (Child, Process) {
        let script = format!("read _; {script}");
        let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        let procfs = Procfs::new("/proc");
        let pid = child.id().cast_signed();
        let process = Process::open(pid, procfs.start_of(pid).unwrap().unwrap(), &procfs).unwrap();
        (child, process)
    }

    #[test]
    fn end_and_reaping_are_reported_once_each() {
        let procfs = Procfs::new("/proc");
        for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
            let (mut child, mut process) = shell(script);
            assert_eq!(process.check(&procfs), None);
            drop(child.stdin.take());
            poll(&mut [process.poll_fd().unwrap()], PollTimeout::NONE).unwrap();
            assert_eq!(process.check(&procfs), Some(ProcessEvent::Ended), "before it is reaped");
            assert_eq!(process.check(&procfs), None);
            child.wait().unwrap();
            let expected = kernel_reports_codes().then_some(code);
            assert_eq!(process.check(&procfs), Some(ProcessEvent::Reaped(expected)), "{script}");
        }
    }

    #[test]
    fn process_without_pidfd_ends_when_proc_shows_it() {
        let procfs = Procfs::new("/proc");
        let (mut child, mut process) = shell("exit 3");
        process.pidfd = None;
        assert_eq!(process.check(&procfs), None);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(process.check(&procfs), Some(ProcessEvent::Reaped(None)));
    }

    #[test]
    fn read_error_is_not_an_end() {
        let root = tempfile::tempdir().unwrap();
        // Reading a directory fails, like any read while no file can be opened.
        std::fs::create_dir_all(root.path().join("7/stat")).unwrap();
        let procfs = Procfs::new(root.path());
        let mut process = Process { pid: 7, started: 200, pidfd: None, has_ended: false };
        assert_eq!(process.check(&procfs), None);
        assert!(Process::open(7, 200, &procfs).is_some());
        std::fs::remove_dir_all(root.path().join("7")).unwrap();
        assert_eq!(process.check(&procfs), Some(ProcessEvent::Reaped(None)));
    }

    #[test]
    fn process_with_other_start_time_is_another() {
        let procfs = Procfs::new("/proc");
        let own = std::process::id().cast_signed();
        let started = procfs.start_of(own).unwrap().unwrap();
        assert!(Process::open(own, started, &procfs).is_some());
        assert!(Process::open(own, started + 1, &procfs).is_none());
    }

    #[test]
    fn wait_status_becomes_the_kubelets_code() {
        for (status, code) in [(0, 0), (0x0700, 7), (0xff00, 255), (9, 137), (0x8b, 139), (34, 162)] {
            assert_eq!(exit_code(status), code, "{status:#x}");
        }
    }
}
