//! Finds the init processes of containers among the processes that were started since the last scan.

use std::time::Duration;

use super::process::Process;
use super::procfs::{Lookup, Procfs, RootProcess};

/// If more PIDs are new, `/proc` is listed instead.
const MAX_NEW_PIDS: i32 = 1000;
/// Time that an allocated PID may be absent in `/proc`: the kernel allocates the number a moment before.
const PROC_ENTRY_TIMEOUT: Duration = Duration::from_millis(100);
/// Time in which a process in creation usually gets its container's mounts, and the scan intervals before and after
/// that. A slow disk takes longer.
const CREATION_EXPECTED_WITHIN: Duration = Duration::from_secs(2);
const CREATION_SCAN_INTERVAL: Duration = Duration::from_millis(5);
const SLOW_CREATION_SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// Longest reliable pause between two scans. In a longer one, a container's init process may have ended, with an exec
/// session in the container left over.
const MAX_RELIABLE_GAP: Duration = Duration::from_millis(50);

/// Holds what a scan found.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// Root processes with a container's mounts, in the order of their starts.
    pub(super) named: Vec<NamedProcess>,
    /// Init processes that ended before they had their container's mounts. They may not be reaped yet.
    pub(super) unidentified: Vec<Process>,
    /// A process ended before it could be looked up.
    pub(super) pid_missed: bool,
}

/// A root process with a container's mounts.
#[derive(Debug)]
pub(super) struct NamedProcess {
    pub(super) root: RootProcess,
    /// The process, if it was opened before it had the mounts.
    pub(super) process: Option<Process>,
    /// True for the container's init process; false for an exec session whose init process was missed.
    pub(super) is_init: bool,
}

#[derive(Debug)]
pub(super) struct StartDetector {
    /// The last allocated PID at the last scan; 0 before the first.
    last_pid: i32,
    last_scan: Duration,
    pending: Vec<PendingPid>,
    own_pid: i32,
}

/// A PID that may become a container's init process.
#[derive(Debug)]
enum PendingPid {
    /// A PID without a complete entry in `/proc`. After `until` it counts as missed.
    NotInProc { pid: i32, until: Duration },
    /// A process of which the runtime is creating a container. An exec session starts with its container's mounts.
    InCreation { process: Process, since: Duration },
}

impl StartDetector {
    pub(super) fn new(own_pid: i32) -> Self {
        Self { last_pid: 0, last_scan: Duration::ZERO, pending: Vec::new(), own_pid }
    }

    /// Returns the interval of scans for processes in creation; `None` if there are none.
    pub(super) fn scan_interval(&self, now: Duration) -> Option<Duration> {
        let intervals = self.pending.iter().filter_map(|pending| match pending {
            PendingPid::InCreation { since, .. } if now >= *since + CREATION_EXPECTED_WITHIN => {
                Some(SLOW_CREATION_SCAN_INTERVAL)
            }
            PendingPid::InCreation { .. } => Some(CREATION_SCAN_INTERVAL),
            PendingPid::NotInProc { .. } => None,
        });
        intervals.min()
    }

    /// Looks up processes in creation and, if something `may_start`, those that were started since the last scan.
    pub(super) fn scan(&mut self, procfs: &Procfs, may_start: bool, now: Duration) -> ScanResult {
        let gap = now.saturating_sub(std::mem::replace(&mut self.last_scan, now));
        let is_reliable = self.last_pid == 0 || gap <= MAX_RELIABLE_GAP;
        let mut pids = std::mem::take(&mut self.pending);
        let (mut named, mut unidentified) = (Vec::new(), Vec::new());
        // The lowest PID of a process that was missed.
        let mut missed: Option<i32> = None;
        if may_start {
            let (new, is_listed) = self.new_pids(procfs, &pids, now);
            pids.extend(new);
            // Whatever came and went before the list was made.
            missed = is_listed.then_some(0);
        }
        for pending in pids {
            let pid = pending.pid();
            match classify(pending, procfs, may_start, now) {
                Classification::Named(root, process) => named.push((root, process)),
                Classification::Unidentified(process) => unidentified.push(process),
                Classification::Pending(pending) => self.pending.push(pending),
                Classification::Missed => missed = missed.into_iter().chain([pid]).min(),
                Classification::Ignored => {}
            }
        }
        let absent = self.pending.iter().filter(|pending| matches!(pending, PendingPid::NotInProc { .. }));
        let absent = absent.map(PendingPid::pid).chain(missed).min();
        named.sort_by_key(|(root, _)| (root.started, root.pid));
        let named = named.into_iter().map(|(root, process)| {
            let is_init = process.is_some() || is_reliable || absent.is_none_or(|pid| pid > root.pid);
            NamedProcess { root, process, is_init }
        });
        ScanResult { named: named.collect(), unidentified, pid_missed: missed.is_some() }
    }

    /// Returns the new PIDs and `false`; if the last PID does not show which are new, all PIDs and `true`.
    fn new_pids(&mut self, procfs: &Procfs, known: &[PendingPid], now: Duration) -> (Vec<PendingPid>, bool) {
        let last = procfs.last_pid().unwrap_or_default();
        let before = std::mem::replace(&mut self.last_pid, last);
        let is_new = |pid: &i32| *pid != self.own_pid && !known.iter().any(|pending| pending.pid() == *pid);
        let pending = |until| move |pid| PendingPid::NotInProc { pid, until };
        if before == 0 || last < before || last - before > MAX_NEW_PIDS {
            return (procfs.pids().into_iter().filter(is_new).map(pending(now)).collect(), true);
        }
        ((before + 1..=last).filter(is_new).map(pending(now + PROC_ENTRY_TIMEOUT)).collect(), false)
    }
}

/// Classifies a pending PID.
enum Classification {
    /// A named process, with its handle if it was opened before it had its name.
    Named(RootProcess, Option<Process>),
    Unidentified(Process),
    Pending(PendingPid),
    Missed,
    /// A child or thread of another process.
    Ignored,
}

fn classify(pending: PendingPid, procfs: &Procfs, may_start: bool, now: Duration) -> Classification {
    let found = procfs.look_up(pending.pid());
    match (pending, found) {
        (PendingPid::InCreation { mut process, since }, found) => match found {
            Ok(Lookup::Root(root)) if root.started == process.started && root.instance.is_some() => {
                Classification::Named(root, Some(process))
            }
            _ if process.has_ended(procfs) => Classification::Unidentified(process),
            _ => Classification::Pending(PendingPid::InCreation { process, since }),
        },
        (_, Ok(Lookup::Root(root))) if root.instance.is_some() => Classification::Named(root, None),
        // The runtime is creating a container of it. It is opened at once, so that its end and its code are reported even
        // if it is never seen with the container's mounts.
        (_, Ok(Lookup::Root(root))) if root.has_mounts => match Process::open(root.pid, root.started, procfs) {
            Some(process) => Classification::Pending(PendingPid::InCreation { process, since: now }),
            None => Classification::Missed,
        },
        (_, Ok(Lookup::Other)) => Classification::Ignored,
        // A process without mounts is exiting, as an exec session may be.
        (PendingPid::NotInProc { pid, until }, found) if found.is_err() || (may_start && now < until) => {
            Classification::Pending(PendingPid::NotInProc { pid, until })
        }
        _ => Classification::Missed,
    }
}

impl PendingPid {
    fn pid(&self) -> i32 {
        match self {
            Self::NotInProc { pid, .. } => *pid,
            Self::InCreation { process, .. } => process.pid,
        }
    }
}

#[cfg(test)]
impl StartDetector {
    /// Returns a detector that has just seen all processes up to this PID.
    pub(super) fn after(last_pid: i32) -> Self {
        Self { last_pid, ..Self::new(std::process::id().cast_signed()) }.since(crate::clock::now())
    }

    /// Sets the time of the last scan.
    pub(super) fn since(self, last_scan: Duration) -> Self {
        Self { last_scan, ..self }
    }
}
