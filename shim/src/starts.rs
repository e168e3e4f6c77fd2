//! Told by the kernel that a container is about to be made. The kubelet writes the pod's `/etc/hosts` anew, and sets its
//! mode, each time it makes a container of the pod, a moment before the runtime does (`ensureHostsFile` in `kubelet_pods.go`,
//! 1.29 to 1.36); every container of the pod has that very file mounted. So no start needs to be looked for, and none can be
//! missed unheard: events queue up however slow this process is.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// The announcements of container starts in this pod.
#[derive(Debug)]
pub(crate) struct Starts(OwnedFd);

impl Starts {
    /// Listens to a pod's hosts file.
    pub(crate) fn listen(hosts: &str) -> Result<Self, Errno> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        // Both, though one would do: the kernel merges an event with the one before it where they are the same.
        inotify::add_watch(&fd, hosts, WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB)?;
        Ok(Self(fd))
    }

    /// For a poll that wakes at an announcement.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }

    /// How many starts were announced since the last call.
    pub(crate) fn take(&self) -> usize {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut starts = 0;
        while let Ok(event) = reader.next() {
            starts += usize::from(event.events().contains(ReadFlags::CLOSE_WRITE));
        }
        starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_writing_of_the_hosts_file_is_one_start() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = folder.path().join("hosts");
        let as_the_kubelet_does = || {
            fs::write(&hosts, "10.244.0.9 pod\n").unwrap();
            fs::set_permissions(&hosts, fs::Permissions::from_mode(0o644)).unwrap();
        };
        as_the_kubelet_does();
        let starts = Starts::listen(hosts.to_str().unwrap()).unwrap();
        assert_eq!(starts.take(), 0);
        for _ in 0..3 {
            as_the_kubelet_does();
        }
        assert_eq!(starts.take(), 3);
        assert_eq!(starts.take(), 0);
        fs::read(&hosts).unwrap();
        assert_eq!(starts.take(), 0, "a reader is no start");
    }

    #[test]
    fn a_missing_hosts_file_is_an_error() {
        assert_eq!(Starts::listen("/no/such/hosts").unwrap_err(), Errno::NOENT);
    }
}
