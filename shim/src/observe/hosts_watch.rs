//! Watches the pod's hosts file, whose writes announce containers.
//!
//! The kubelet writes the pod's `/etc/hosts`, and then sets its mode, each time it creates a container of the pod, a
//! moment before the runtime does (`ensureHostsFile` in `kubelet_pods.go`, 1.29 to 1.36). Every container of the pod has
//! that file mounted, and inotify queues the events, however late they are read.

use std::io;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Watches the hosts file by inotify.
#[derive(Debug)]
pub(crate) struct HostsFileWatch {
    inotify: Inotify,
    /// Half of an announcement: the file was written and its mode not set since, or the other way round.
    unpaired_event: Option<AddWatchFlags>,
}

impl HostsFileWatch {
    pub(crate) fn new(hosts: &str) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(hosts, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB)?;
        Ok(Self { inotify, unpaired_event: None })
    }

    /// Returns the descriptor for a poll that wakes when something was written.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)
    }

    /// Reads pending events, and returns how many containers they announce. A container that appends a line to its
    /// hosts file does not set the file's mode, so that is not an announcement.
    pub(crate) fn drain(&mut self) -> usize {
        let events = self.inotify.read_events().unwrap_or_default();
        let mut announced = 0;
        for event in events {
            let both = [AddWatchFlags::IN_CLOSE_WRITE, AddWatchFlags::IN_ATTRIB];
            let Some(kind) = both.into_iter().find(|kind| event.mask.contains(*kind)) else { continue };
            // If the kubelet forks meanwhile, the file is closed by its child, after its mode was set.
            self.unpaired_event = match self.unpaired_event.take() {
                Some(half) if half != kind => {
                    announced += 1;
                    None
                }
                _ => Some(kind),
            };
        }
        announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions, Permissions};
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn write_as_kubelet(hosts: &Path) {
        fs::write(hosts, "10.244.0.9 pod\n").unwrap();
        fs::set_permissions(hosts, Permissions::from_mode(0o644)).unwrap();
    }

    #[test]
    fn write_of_the_kubelet_is_one_announcement() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = directory.path().join("hosts");
        write_as_kubelet(&hosts);
        let mut watch = HostsFileWatch::new(hosts.to_str().unwrap()).unwrap();
        assert_eq!(watch.drain(), 0);
        for _ in 0..3 {
            write_as_kubelet(&hosts);
        }
        assert_eq!((watch.drain(), watch.drain()), (3, 0));
        fs::read(&hosts).unwrap();
        assert_eq!(watch.drain(), 0, "a read is none");
        fs::write(&hosts, "10.244.0.9 pod\n").unwrap();
        assert_eq!(watch.drain(), 0, "half of it");
        fs::set_permissions(&hosts, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(watch.drain(), 1, "the other half");
    }

    #[test]
    fn file_closed_after_its_mode_was_set_is_announced() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = directory.path().join("hosts");
        write_as_kubelet(&hosts);
        let mut watch = HostsFileWatch::new(hosts.to_str().unwrap()).unwrap();
        for _ in 0..2 {
            let file = fs::File::create(&hosts).unwrap();
            fs::set_permissions(&hosts, Permissions::from_mode(0o644)).unwrap();
            drop(file);
        }
        assert_eq!(watch.drain(), 2);
    }

    #[test]
    fn appended_line_announces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = directory.path().join("hosts");
        write_as_kubelet(&hosts);
        let mut watch = HostsFileWatch::new(hosts.to_str().unwrap()).unwrap();
        for _ in 0..3 {
            OpenOptions::new().append(true).open(&hosts).unwrap().write_all(b"10.0.0.1 worker\n").unwrap();
        }
        assert_eq!(watch.drain(), 0);
        write_as_kubelet(&hosts);
        assert_eq!(watch.drain(), 1);
    }

    #[test]
    fn missing_hosts_file_is_an_error() {
        assert_eq!(HostsFileWatch::new("/no/such/hosts").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
