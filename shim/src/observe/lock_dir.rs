//! Reports of wrapped containers to `supervise`, for pods with separate PID namespaces. Each container has a directory of
//! its own, which no other container sees, with a file that its wrapper locks. Its text is the start and, at the end, the
//! exit code. The kernel releases the lock however the wrapper ends.

#[cfg(test)]
mod tests;

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::log;
use crate::pod::{Event, Instance, PodState, Role};

/// The file in a container's directory.
const LOCK_FILE: &str = "lock";
/// The kubelet's exit code of a container whose init process was killed. A wrapper without an exit line was killed.
const KILLED: i32 = 128 + 9;
/// Checks after a change. The kernel reports that a file was closed a moment before it releases the lock.
const RECHECK_COUNT: u32 = 20;
const RECHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of checks after those, once a file was closed.
const CLOSED_CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// Interval of checks if the directories cannot be watched.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Holds a wrapped container's own lock.
#[derive(Debug)]
pub(crate) struct ContainerLock(File);

impl ContainerLock {
    /// Locks a new report, and writes that the container has started. `instance` differs for each start.
    pub(crate) fn acquire(directory: &Path, instance: &str) -> io::Result<Self> {
        let path = directory.join(LOCK_FILE);
        // An earlier process of this container may have left any file there.
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.try_lock()?;
        // The supervisor runs as another user.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(format!("started {instance}\n").as_bytes())?;
        Ok(Self(file))
    }

    /// Writes that the container has exited with this code.
    pub(crate) fn record_exit(&mut self, code: i32) -> io::Result<()> {
        self.0.write_all(format!("exited {code}\n").as_bytes())
    }
}

/// Holds a wrapper's report, and its open file: the container may replace the file while the wrapper locks it.
#[derive(Debug)]
struct Report {
    file: File,
    /// Start of the wrapper, in nanoseconds since the machine's boot.
    instance: u64,
    /// Its lock was seen held. gVisor mounts volumes separately for each container: there it never is.
    was_held: bool,
    exit_code: Option<i32>,
}

/// Watches the directories of the pod's wrapped containers.
#[derive(Debug)]
pub(crate) struct LockDir {
    directory: PathBuf,
    inotify: Option<Inotify>,
    rechecks: u32,
    last_check: Duration,
    /// A file was closed. Its lock may be held for longer than the rechecks last.
    was_closed: bool,
    /// The last report of each container.
    reports: Vec<(String, Report)>,
}

impl LockDir {
    pub(crate) fn new(directory: &Path) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC);
        Self {
            directory: directory.to_owned(),
            inotify: inotify.inspect_err(|&error| cannot_watch(error)).ok(),
            rechecks: 1,
            last_check: Duration::ZERO,
            was_closed: false,
            reports: Vec::new(),
        }
    }

    /// Returns the descriptor for a poll that wakes when something was reported.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        // Rechecks are due anyway, so no event needs to wake the poll.
        let inotify = self.inotify.as_ref().filter(|_| self.rechecks == 0)?;
        Some(PollFd::new(inotify.as_fd(), PollFlags::POLLIN))
    }

    /// Returns the longest wait until the next [`check`](Self::check).
    pub(crate) fn poll_interval(&self, now: Duration) -> Option<Duration> {
        self.check_interval().map(|interval| (self.last_check + interval).saturating_sub(now))
    }

    fn check_interval(&self) -> Option<Duration> {
        match (&self.inotify, self.rechecks) {
            (_, 1..) => Some(RECHECK_INTERVAL),
            (None, 0) => Some(LOCK_POLL_INTERVAL),
            (Some(_), 0) => self.was_closed.then_some(CLOSED_CHECK_INTERVAL),
        }
    }

    /// Returns what the pod's containers have reported since the last call.
    pub(crate) fn check(&mut self, pod: &PodState, now: Duration) -> Vec<Event> {
        let changes = self.inotify.as_ref().and_then(|inotify| inotify.read_events().ok()).unwrap_or_default();
        if !changes.is_empty() {
            self.rechecks = RECHECK_COUNT;
            self.was_closed |= changes.iter().any(|event| event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE));
        } else if self.check_interval().is_none_or(|interval| now < self.last_check + interval) {
            return Vec::new();
        }
        self.rechecks = self.rechecks.saturating_sub(1);
        self.last_check = now;
        self.watch(&self.directory.clone(), AddWatchFlags::IN_CREATE);
        let wrapped = pod.containers.iter().filter(|container| container.role != Role::Proxy);
        wrapped.flat_map(|container| self.events_of(&container.name, container.instance.as_ref(), now)).collect()
    }

    /// Returns the events of a container. `last` is its last known start.
    fn events_of(&mut self, container: &str, last: Option<&Instance>, now: Duration) -> Vec<Event> {
        let directory = self.directory.join(container);
        self.watch(&directory, AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE);
        let before = self.reports.iter().position(|(name, _)| name == container);
        let before = before.map(|index| self.reports.swap_remove(index).1);
        let newer = Report::open(&directory, now)
            .filter(|report| before.as_ref().is_none_or(|it| it.instance < report.instance));
        let is_new = newer.is_some();
        let Some(mut report) = newer.or(before) else { return Vec::new() };
        let id = format!("{container}/{}", report.instance);
        let is_known = last.is_some_and(|instance| instance.id == id);
        // An earlier run of the shim has seen it held.
        report.was_held |= is_known;
        report.check();
        let has_started = report.was_held || report.exit_code.is_some();
        if is_new && !has_started {
            let next = "istio-aux finish, if it has ended";
            log::warn("a container does not lock its report", &[("container", &container), ("next", &next)]);
        }
        let mut events = Vec::new();
        if has_started && !is_known {
            let instance = Instance { id: id.clone(), pid: 0, started: Duration::from_nanos(report.instance) };
            events.push(Event::Started { container: container.to_owned(), instance });
        }
        if report.exit_code.is_some() {
            events.push(Event::Reaped { instance: id, code: report.exit_code });
        }
        self.reports.push((container.to_owned(), report));
        events
    }

    fn watch(&mut self, directory: &Path, events: AddWatchFlags) {
        let flags = events | AddWatchFlags::IN_ONLYDIR | AddWatchFlags::IN_DONT_FOLLOW;
        let watched = self.inotify.as_ref().map(|inotify| inotify.add_watch(directory, flags));
        // It does not exist before its container is created, which the directory above reports.
        if let Some(Err(error)) = watched
            && error != Errno::ENOENT
        {
            cannot_watch(error);
            self.inotify = None;
        }
    }
}

fn cannot_watch(error: Errno) {
    // The texts of nix' own errors would make the binary 14 KB larger.
    let error = io::Error::from(error);
    log::warn("no inotify: wrapped containers are checked 4 times a second", &[("error", &error)]);
}

impl Report {
    /// Opens the report of a container; `None` before its start. The container may have put any file there.
    fn open(directory: &Path, now: Duration) -> Option<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(directory.join(LOCK_FILE)).ok()?;
        file.metadata().ok().filter(Metadata::is_file)?;
        let mut report = Self { file, instance: 0, was_held: false, exit_code: None };
        let text = report.read();
        // A line without its line break is still being written.
        report.instance = text.split_once('\n')?.0.strip_prefix("started ")?.parse().ok()?;
        // A start later than now is of an earlier boot.
        (Duration::from_nanos(report.instance) <= now).then_some(report)
    }

    /// Reads the report again. A wrapper whose lock is free again has ended: with its exit line, or it was killed.
    fn check(&mut self) {
        self.exit_code = self.exit_line();
        if self.exit_code.is_some() {
            return;
        }
        match self.file.try_lock_shared() {
            Ok(()) if self.was_held => self.exit_code = self.exit_line().or(Some(KILLED)),
            Err(TryLockError::WouldBlock) => self.was_held = true,
            // A failed call shows neither that the lock is held nor that it is free.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
    }

    fn exit_line(&mut self) -> Option<i32> {
        let text = self.read();
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.filter_map(|line| line.rsplit_once("exited ")?.1.parse().ok()).next_back()
    }

    fn read(&mut self) -> String {
        let mut text = Vec::new();
        // Unreadable text counts as not reported.
        let _ = self.file.seek(SeekFrom::Start(0)).and_then(|_| (&self.file).take(512).read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    }
}
