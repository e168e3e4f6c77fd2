//! How wrapped containers tell of themselves in a folder that the pod's containers share: a file for each, locked while
//! the wrapper lives, whose text is the container's start and, at the end, its exit code. The kernel releases the lock
//! however the wrapper ends, so nothing depends on its last words.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::decide::{Exit, Pod, Role};

/// What the kubelet shows of a container whose init was killed, as a wrapper that left no code was.
const KILLED: i32 = 128 + 9;
/// The kernel tells of a file's closing a moment before it releases its lock: so often it is looked at again after that,
const LOOK_AGAIN: u32 = 50;
/// with this pause.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// Pause between two looks where the folder cannot be watched.
const LOOK_UNTOLD_EVERY: Duration = Duration::from_millis(250);

/// A wrapped container's own lock.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Tells that a container has started. `attempt` is its start's id.
    pub(crate) fn take(folder: &Path, container: &str, attempt: &str) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(container))?;
        // Whoever watches is of another user.
        file.set_permissions(Permissions::from_mode(0o644))?;
        // The one before may not have gone yet, and whoever watches tries the lock now and then.
        file.lock()?;
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(format!("started {attempt}\n").as_bytes())?;
        Ok(Self(file))
    }

    /// Tells that it has ended with this code.
    pub(crate) fn leave(&mut self, code: i32) -> io::Result<()> {
        self.0.write_all(format!("exited {code}\n").as_bytes())
    }
}

/// A wrapped container as its file tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrapped {
    /// The id of its start.
    pub(crate) attempt: String,
    /// How it ended, once it has.
    pub(crate) exit: Option<Exit>,
}

/// The folder, watched.
#[derive(Debug)]
pub(crate) struct Locks {
    folder: PathBuf,
    /// Tells of changes; `None` where it cannot be had.
    changes: Option<OwnedFd>,
    /// How many more looks are due though nothing changed.
    looks: u32,
}

impl Locks {
    pub(crate) fn watch(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), changes: changes_in(folder).ok(), looks: 1 }
    }

    /// For a poll that wakes when something has changed.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.changes.as_ref().map(|changes| PollFd::new(changes, PollFlags::IN))
    }

    /// The pause until the next look; `None` where there is nothing new to see.
    pub(crate) fn pace(&self) -> Option<Duration> {
        match (&self.changes, self.looks) {
            (_, 1..) => Some(LOOK_AGAIN_AFTER),
            (None, 0) => Some(LOOK_UNTOLD_EVERY),
            (Some(_), 0) => None,
        }
    }

    /// Takes note of changes.
    pub(crate) fn hear(&mut self) {
        let Some(changes) = &self.changes else { return };
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut reader = inotify::Reader::new(changes, &mut buffer);
        while reader.next().is_ok() {
            self.looks = LOOK_AGAIN;
        }
    }

    /// What the files of the pod's containers tell, by the container's index in the pod.
    pub(crate) fn look(&mut self, pod: &Pod) -> Vec<(usize, Wrapped)> {
        self.looks = self.looks.saturating_sub(1);
        let containers = pod.containers.iter().enumerate().filter(|(_, container)| container.role != Role::Proxy);
        containers.filter_map(|(index, container)| Some((index, self.wrapped(&container.name)?))).collect()
    }

    /// What a container's file tells; `None` while it has not started.
    fn wrapped(&self, container: &str) -> Option<Wrapped> {
        let mut file = File::open(self.folder.join(container)).ok()?;
        let told = read(&mut file)?;
        if told.exit.is_some() || matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return Some(told);
        }
        // The wrapper has gone: what it wrote is its last word, a code or none. Should another have begun meanwhile, it
        // waits for this lock.
        let exit = Exit::Code(KILLED);
        read(&mut file).map(|told| Wrapped { exit: told.exit.or(Some(exit)), ..told })
    }
}

fn changes_in(folder: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&changes, folder, WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE)?;
    Ok(changes)
}

/// Reads a file's text; `None` where it is not whole, which its writer is about to mend.
fn read(file: &mut File) -> Option<Wrapped> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(512).read_to_string(&mut text).ok()?;
    let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let attempt = lines.next()?.strip_prefix("started ")?.to_owned();
    let exit = lines.next().and_then(|line| line.strip_prefix("exited ")?.parse().ok()).map(Exit::Code);
    Some(Wrapped { attempt, exit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn wrapped(attempt: &str, exit: Option<i32>) -> Wrapped {
        Wrapped { attempt: attempt.to_owned(), exit: exit.map(Exit::Code) }
    }

    #[test]
    fn a_container_runs_while_its_lock_is_held_and_has_ended_with_the_code_it_left() {
        let folder = tempfile::tempdir().unwrap();
        let locks = Locks::watch(folder.path());
        assert_eq!(locks.wrapped("main"), None);
        let mut lock = Lock::take(folder.path(), "main", "a1").unwrap();
        assert_eq!(locks.wrapped("main"), Some(wrapped("a1", None)));
        lock.leave(7).unwrap();
        assert_eq!(locks.wrapped("main"), Some(wrapped("a1", Some(7))), "before the wrapper has gone");
        drop(lock);
        assert_eq!(locks.wrapped("main"), Some(wrapped("a1", Some(7))));
    }

    #[test]
    fn a_wrapper_that_went_without_a_word_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let locks = Locks::watch(folder.path());
        drop(Lock::take(folder.path(), "main", "a1").unwrap());
        assert_eq!(locks.wrapped("main"), Some(wrapped("a1", Some(137))));
        let _lock = Lock::take(folder.path(), "main", "a2").unwrap();
        assert_eq!(locks.wrapped("main"), Some(wrapped("a2", None)), "started again");
    }

    #[test]
    fn each_change_is_heard_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut locks = Locks::watch(folder.path());
        let mut heard = || {
            locks.looks = 0;
            locks.hear();
            locks.pace().is_some()
        };
        assert!(!heard());
        let mut lock = Lock::take(folder.path(), "main", "a1").unwrap();
        assert!(heard());
        assert!(!heard());
        lock.leave(0).unwrap();
        assert!(heard());
        drop(lock);
        assert!(heard(), "its end is told without its help");
    }

    #[test]
    fn what_is_not_whole_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let locks = Locks::watch(folder.path());
        for text in ["", "started", "started a1", "rubbish\n", "\u{0}\n"] {
            fs::write(folder.path().join("main"), text).unwrap();
            assert_eq!(locks.wrapped("main"), None, "{text:?}");
        }
    }
}
