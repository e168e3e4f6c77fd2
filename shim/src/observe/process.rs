//! Watches a process of a sibling container for its end, and for its exit code once its parent has reaped it.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::procfs::Procfs;
use crate::pod::Exit;
use crate::syscalls::{pidfd_exit_status, pidfd_open};

/// Interval at which `/proc` is checked for the end of a process without a pidfd.
const PROC_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which an ended process is checked for its reaping, which kernels before 6.9 do not report.
const REAP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Holds a process that was seen running.
#[derive(Debug)]
pub(crate) struct Process {
    pid: i32,
    started: u64,
    /// `None` if `pidfd_open` failed: kernels before 5.3, old seccomp profiles, no memory.
    pidfd: Option<OwnedFd>,
    /// Whether it was seen to have ended.
    has_ended: bool,
}

impl Process {
    /// Opens the process with this PID and start time; `None` if it does not exist.
    pub(crate) fn open(pid: i32, started: u64, procfs: &Procfs) -> Option<Self> {
        let pidfd = pidfd_open(pid).ok();
        // An error of pidfd_open does not prove that the process is gone, and the PID may have been reused: /proc shows it.
        (!procfs.is_gone(pid, started)).then_some(Self { pid, started, pidfd, has_ended: false })
    }

    /// Returns the exit once the process has ended and its parent has reaped it. Sets `has_executed` if the process has executed
    /// a command since it was forked.
    pub(crate) fn check(&mut self, procfs: &Procfs, has_executed: &mut bool) -> Option<Exit> {
        let is_gone = || procfs.is_gone(self.pid, self.started);
        let Some(pidfd) = &self.pidfd else {
            return is_gone().then_some(Exit { code: None, has_executed: *has_executed });
        };
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::ZERO).ok().and_then(|_| fds[0].revents()).unwrap_or(PollFlags::empty());
        if ready.contains(PollFlags::POLLIN) && !mem::replace(&mut self.has_ended, true) {
            // It can still be read, unless it has just been reaped.
            *has_executed |= procfs.has_executed(self.pid, self.started);
        }
        let is_reaped = ready.contains(PollFlags::POLLHUP) || (self.has_ended && is_gone());
        is_reaped.then(|| Exit { code: pidfd_exit_status(pidfd).map(exit_code), has_executed: *has_executed })
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
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use contract::version::Version;

    use super::*;

    fn kernel_reports_codes() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        Version::parse(&release).unwrap().reports_exit_codes()
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
    fn code_is_reported_after_the_reaping() {
        let procfs = Procfs::new("/proc");
        for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
            let (mut child, mut process) = shell(script);
            let mut has_executed = false;
            assert_eq!(process.check(&procfs, &mut has_executed), None);
            drop(child.stdin.take());
            poll(&mut [process.poll_fd().unwrap()], PollTimeout::NONE).unwrap();
            assert_eq!(process.check(&procfs, &mut has_executed), None, "before it is reaped");
            assert!(has_executed);
            child.wait().unwrap();
            let expected = Exit { code: kernel_reports_codes().then_some(code), has_executed: true };
            assert_eq!(process.check(&procfs, &mut has_executed), Some(expected), "{script}");
        }
    }

    #[test]
    fn process_without_pidfd_ends_when_proc_shows_it() {
        let procfs = Procfs::new("/proc");
        let (mut child, mut process) = shell("exit 3");
        process.pidfd = None;
        assert_eq!(process.check(&procfs, &mut false), None);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(process.check(&procfs, &mut false), Some(Exit { code: None, has_executed: false }));
    }

    #[test]
    fn read_error_is_not_an_end() {
        let root = tempfile::tempdir().unwrap();
        // Reading a directory fails, like any read while no file can be opened.
        std::fs::create_dir_all(root.path().join("7/stat")).unwrap();
        let procfs = Procfs::new(root.path());
        let mut process = Process { pid: 7, started: 200, pidfd: None, has_ended: false };
        assert_eq!(process.check(&procfs, &mut false), None);
        assert!(Process::open(7, 200, &procfs).is_some());
        std::fs::remove_dir_all(root.path().join("7")).unwrap();
        assert_eq!(process.check(&procfs, &mut false), Some(Exit { code: None, has_executed: false }));
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
    fn exit_status_becomes_the_kubelets_code() {
        for (status, code) in [(0, 0), (0x0700, 7), (0xff00, 255), (9, 137), (0x8b, 139), (34, 162)] {
            assert_eq!(exit_code(ExitStatus::from_raw(status)), code, "{status:#x}");
        }
    }
}
