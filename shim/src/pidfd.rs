//! A sibling process by its pidfd: told of its end by the kernel, and of its exit code after somebody else reaped it.
//! The one room with unsafe code: the kernel's `PIDFD_GET_INFO`, which no library offers yet.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{self, Updater, opcode};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::decide::Exit;

/// How long the runtime gets to reap an ended process before its code counts as unknown. containerd takes
/// milliseconds; kernels that cannot report the reaping run into this limit once for each exit.
const REAPED_WITHIN: Duration = Duration::from_secs(1);

/// A process that ends unseen by nobody: the descriptor names this process and never another of the same number.
#[derive(Debug)]
pub(crate) struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens the process with this number in our PID namespace. `ESRCH` where it has gone.
    pub(crate) fn open(pid: i32) -> Result<Self, Errno> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        pidfd_open(pid, PidfdFlags::NONBLOCK).map(Self)
    }

    /// For a poll that wakes when the process ends.
    pub(crate) fn until_end(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }

    /// Whether the process has ended, reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(poll(&mut [self.until_end()], Some(&Timespec::default())), Ok(1))
    }

    /// How the process ended. Waits until its parent has reaped it, since the kernel tells only then.
    pub(crate) fn exit(&self) -> Exit {
        // No event asked for: only the hang-up wakes, which is the reaping.
        let mut reaped = [PollFd::new(&self.0, PollFlags::empty())];
        let limit = Timespec::try_from(REAPED_WITHIN).ok();
        match poll(&mut reaped, limit.as_ref()) {
            Ok(1) => exit_of_reaped(self.0.as_fd()),
            _ => Exit::Unknown,
        }
    }
}

/// The kernel's `struct pidfd_info` in its first published size, 64 bytes (`include/uapi/linux/pidfd.h`).
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64 && std::mem::offset_of!(PidfdInfo, exit_code) == 60);

/// `PIDFD_INFO_EXIT`: asks for `exit_code`, and says in the answer that it is there. Since Linux 6.15.
const INFO_EXIT: u64 = 1 << 3;

/// `PIDFD_GET_INFO`.
const GET_INFO: ioctl::Opcode = opcode::read_write::<PidfdInfo>(0xFF, 11);

fn exit_of_reaped(fd: BorrowedFd<'_>) -> Exit {
    let mut info = PidfdInfo { mask: INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the opcode carries the size of the very struct that is passed, and the kernel writes at most that
    // size into it; every bit pattern is a valid PidfdInfo. On another kind of descriptor it answers ENOTTY.
    let asked = unsafe { ioctl::ioctl(fd, Updater::<GET_INFO, PidfdInfo>::new(&mut info)) };
    if asked.is_err() || info.mask & INFO_EXIT == 0 {
        return Exit::Unknown;
    }
    Exit::Code(code_of_wait_status(info.exit_code))
}

/// A code from the encoding of wait(2): the exit status, or 128 + n where signal n ended the process.
fn code_of_wait_status(status: i32) -> i32 {
    match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs a shell command, lets its parent (this test) reap it, and asks the pidfd.
    fn exit_after_reaping(script: &str) -> Exit {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read _; {script}")])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pidfd = Pidfd::open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!pidfd.has_ended());
        drop(child.stdin.take());
        poll(&mut [pidfd.until_end()], None).unwrap();
        assert!(pidfd.has_ended(), "though nobody has reaped it");
        child.wait().unwrap();
        pidfd.exit()
    }

    fn kernel_reports_codes() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(15))
    }

    #[test]
    fn exit_code_is_known_after_somebody_else_reaped_where_the_kernel_tells() {
        for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
            let expected = if kernel_reports_codes() { Exit::Code(code) } else { Exit::Unknown };
            assert_eq!(exit_after_reaping(script), expected, "{script}");
        }
    }

    #[test]
    fn a_process_that_has_gone_cannot_be_opened() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        child.wait().unwrap();
        assert_eq!(Pidfd::open(pid).unwrap_err(), Errno::SRCH);
    }

    #[test]
    fn wait_status_becomes_the_code_that_the_kubelet_shows() {
        for (status, code) in [(0, 0), (0x0700, 7), (0xff00, 255), (9, 137), (0x8b, 139)] {
            assert_eq!(code_of_wait_status(status), code, "{status:#x}");
        }
    }
}
