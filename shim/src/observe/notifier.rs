//! Wakes the shim when the kubelet is about to start a container, and when it has written the pod's annotations.
//!
//! The kubelet writes the pod's `/etc/hosts` each time it creates a container (`ensureHostsFile` in `kubelet_pods.go`, 1.29
//! to 1.36). Every container of the pod has that file mounted. A wake-up only means that it is time to scan.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::log;

/// The file that the kubelet writes before each start.
const HOSTS_FILE: &str = "/etc/hosts";

/// Watches files by inotify.
#[derive(Debug)]
pub(crate) struct Notifier(Inotify);

impl Notifier {
    /// Watches the directory in which the kubelet replaces the file of annotations, and the pod's hosts file if starts are to be
    /// noticed. Logs what cannot be watched; `None` if there is no inotify.
    pub(crate) fn of_pod(annotations: Option<&Path>, notices_starts: bool) -> Option<Self> {
        let notifier =
            Self::new().inspect_err(|error| log::warn("no inotify: polling instead", &[("error", error)])).ok()?;
        let hosts = notices_starts.then_some(Path::new(HOSTS_FILE));
        for path in hosts.into_iter().chain(annotations) {
            if let Err(error) = notifier.watch(path) {
                log::warn("cannot be watched: polling instead", &[("path", &path.display()), ("error", &error)]);
            }
        }
        Some(notifier)
    }

    /// Watches one file.
    #[cfg(test)]
    pub(super) fn of(path: &Path) -> Self {
        let notifier = Self::new().unwrap();
        notifier.watch(path).unwrap();
        notifier
    }

    fn new() -> io::Result<Self> {
        Ok(Self(Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?))
    }

    fn watch(&self, path: &Path) -> io::Result<()> {
        let written = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVED_TO;
        self.0.add_watch(path, written)?;
        Ok(())
    }

    /// Returns the descriptor for a poll that wakes when something was written.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.0.as_fd(), PollFlags::POLLIN)
    }

    /// Returns true if something was written since the last call.
    pub(crate) fn drain(&self) -> bool {
        self.0.read_events().is_ok_and(|events| !events.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollTimeout, poll};
    use std::fs;

    use nix::sys::stat::{Mode, SFlag, mknod};

    /// Waits for a write to be noticed. A process that another test has just forked keeps the file open for a moment.
    fn notices(notifier: &Notifier) -> bool {
        let noticed = poll(&mut [notifier.poll_fd()], PollTimeout::from(10_000_u16));
        noticed == Ok(1) && notifier.drain()
    }

    #[test]
    fn writes_are_noticed_once() {
        let directory = tempfile::tempdir().unwrap();
        let (hosts, pod) = (directory.path().join("hosts"), directory.path().join("pod"));
        // Opens no descriptor, which processes that other tests fork would close later.
        mknod(&hosts, SFlag::S_IFREG, Mode::S_IRUSR | Mode::S_IWUSR, 0).unwrap();
        fs::create_dir(&pod).unwrap();
        let notifier = Notifier::new().unwrap();
        notifier.watch(&hosts).unwrap();
        notifier.watch(&pod).unwrap();
        assert!(!notifier.drain());
        fs::write(&hosts, "10.244.0.9 pod\n").unwrap();
        assert_eq!([notices(&notifier), notifier.drain()], [true, false]);
        // As the kubelet replaces all files of a volume at once.
        std::os::unix::fs::symlink("..2026", pod.join("..data_tmp")).unwrap();
        fs::rename(pod.join("..data_tmp"), pod.join("..data")).unwrap();
        assert_eq!([notices(&notifier), notifier.drain()], [true, false]);
        fs::read(&hosts).unwrap();
        assert!(!notifier.drain(), "a read is none");
    }

    #[test]
    fn missing_file_is_an_error() {
        let notifier = Notifier::new().unwrap();
        assert_eq!(notifier.watch(Path::new("/no/such/hosts")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
