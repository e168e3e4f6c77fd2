//! A container's init process, however its end can be noticed.

use rustix::event::PollFd;
use rustix::io::Errno;

use crate::decide::Exit;
use crate::pidfd::Pidfd;
use crate::procfs::{Procfs, TopProcess};

/// A process that was seen running.
#[derive(Debug)]
pub(crate) enum Process {
    /// The kernel wakes us at its end.
    Watched(Pidfd),
    /// Where pidfds are refused (old seccomp profiles, gVisor): `/proc` is looked at now and then.
    LookedAt { pid: i32, started: u64 },
}

impl Process {
    /// `None` where it has gone already.
    pub(crate) fn open(process: &TopProcess) -> Option<Self> {
        match Pidfd::open(process.pid) {
            Ok(pidfd) => Some(Self::Watched(pidfd)),
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => {
                Some(Self::LookedAt { pid: process.pid, started: process.started })
            }
            // Which error a process gives that is just being reaped depends on the kernel.
            Err(_) => None,
        }
    }

    /// For a poll that wakes at its end.
    pub(crate) fn until_end(&self) -> Option<PollFd<'_>> {
        match self {
            Self::Watched(pidfd) => Some(pidfd.until_end()),
            Self::LookedAt { .. } => None,
        }
    }

    /// Whether it has ended, by looking.
    pub(crate) fn has_ended(&self, procfs: &Procfs) -> bool {
        match self {
            Self::Watched(pidfd) => pidfd.has_ended(),
            Self::LookedAt { pid, started } => procfs.start_of(*pid) != Some(*started),
        }
    }

    /// How it ended; waits for its reaping.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Watched(pidfd) => pidfd.exit(),
            Self::LookedAt { .. } => Exit::Unknown,
        }
    }
}
