//! System calls for which nix has no safe function. The only unsafe code of the shim.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::sys::signal::SigSet;

/// Opens a process of this PID namespace. The handle never names another process, and becomes readable when this one
/// ends. Linux 5.3.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory of ours.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Mirrors the kernel's `struct pidfd_info` in its first published size (`include/uapi/linux/pidfd.h`).
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64 && std::mem::offset_of!(PidfdInfo, exit_code) == 60);

/// `PIDFD_INFO_EXIT`: requests `exit_code`, and marks it as present in the answer. Linux 6.15.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

nix::ioctl_readwrite!(
    /// Calls `PIDFD_GET_INFO`.
    pidfd_get_info,
    0xFF,
    11,
    PidfdInfo
);

/// Returns the exit status of a process that its parent has reaped; `None` if the kernel does not report it.
pub(crate) fn pidfd_exit_status(pidfd: &OwnedFd) -> Option<ExitStatus> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the request carries the size of the struct that is passed, the kernel writes at most that much, and
    // every bit pattern is a valid PidfdInfo.
    unsafe { pidfd_get_info(pidfd.as_raw_fd(), &raw mut info) }.ok()?;
    (info.mask & PIDFD_INFO_EXIT != 0).then(|| ExitStatus::from_raw(info.exit_code))
}

/// Starts the command with no signal blocked, whatever this process has blocked.
pub(crate) fn unblock_signals_in(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only sigprocmask is called, which signal-safety(7) lists.
    unsafe { command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) }
}

/// Restores the default of SIGCHLD, which the parent of this process may have ignored.
pub(crate) fn default_sigchld() {
    // SAFETY: no handler is installed. It fails only for invalid signal numbers.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Sends a signal to a child. nix does not support real-time signals.
pub(crate) fn kill(pid: i32, signal: c_int) {
    // SAFETY: the call takes two integers. It fails if the child has just been reaped, which is not an error here.
    unsafe { libc::kill(pid, signal) };
}

/// Reaps an ended child, and returns its PID and exit status. nix loses the status of a death by a real-time signal.
pub(crate) fn wait_any() -> Option<(i32, ExitStatus)> {
    let mut status = 0;
    // SAFETY: the kernel writes one integer into `status`, which lives until the call returns.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then(|| (pid, ExitStatus::from_raw(status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaped_process_cannot_be_opened() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        child.wait().unwrap();
        assert_eq!(pidfd_open(pid).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn running_process_has_no_exit_status() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(child.id().cast_signed()).unwrap();
        assert_eq!(pidfd_exit_status(&pidfd), None);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
