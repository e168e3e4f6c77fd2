//! Limits of the kernel that a hundred pods of one node exceed.

use std::fs;

use crate::harness::undo;

/// Keeps a limit of the kernel raised until it is dropped.
pub struct RaisedLimit {
    file: &'static str,
    before: String,
}

impl RaisedLimit {
    /// Raises the packet backlog: a bridge copies each broadcast to all of a hundred pods. Without it, ARP packets are dropped, and
    /// pods do not find each other.
    #[must_use]
    pub fn of_waiting_packets() -> Self {
        Self::raise("/proc/sys/net/core/netdev_max_backlog", "65536")
    }

    /// Raises the limit of the neighbour (ARP) table, which all network namespaces share. Without it, pods that all speak with each
    /// other do not find each other.
    #[must_use]
    pub fn of_neighbours() -> Self {
        Self::raise("/proc/sys/net/ipv4/neigh/default/gc_thresh3", "65536")
    }

    fn raise(file: &'static str, limit: &str) -> Self {
        let before = fs::read_to_string(file).expect("Linux has it");
        fs::write(file, limit).expect("the tests run as root");
        Self { file, before }
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        undo(|| fs::write(self.file, &self.before).expect("the tests run as root"));
    }
}
