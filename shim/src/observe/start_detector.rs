//! Finds the init processes of containers among the processes that were started since the last scan.

use std::time::Duration;

use super::process::Process;
use super::procfs::{Lookup, Procfs, RootProcess};

/// Above so many new PIDs, `/proc` is listed.
const MAX_NEW_PIDS: i32 = 1000;
/// How long a PID may be out before `/proc` has it: the kernel gives the number out a moment before.
const PROC_ENTRY_TIMEOUT: Duration = Duration::from_millis(100);
/// How soon a process that the runtime is creating usually has its container's mounts, and the pause between two scans
/// until then and after that: a slow disk takes longer.
const CREATION_EXPECTED_WITHIN: Duration = Duration::from_secs(2);
const CREATION_SCAN_INTERVAL: Duration = Duration::from_millis(5);
const SLOW_CREATION_SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// After a longer pause between two scans, a container's init process may have ended between them, with an exec session
/// in the container left over.
const MAX_RELIABLE_GAP: Duration = Duration::from_millis(50);

/// What a scan has found.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// Root processes with a container's mounts, in the order of their starts.
    pub(super) named: Vec<NamedProcess>,
    /// Processes that the runtime was creating containers of, and that have ended before they had the mounts. Not
    /// necessarily reaped.
    pub(super) unidentified: Vec<Process>,
    /// A process has ended before anything could be seen of it.
    pub(super) pid_missed: bool,
}

/// A root process with a container's mounts.
#[derive(Debug)]
pub(super) struct NamedProcess {
    pub(super) root: RootProcess,
    /// The opened process, where that was done before it had the mounts.
    pub(super) process: Option<Process>,
    /// It is the container's init process, and no exec session in it whose init process was missed.
    pub(super) is_init: bool,
}

#[derive(Debug)]
pub(super) struct StartDetector {
    /// The last PID that had been given out at the last scan; 0 before the first.
    last_pid: i32,
    last_scan: Duration,
    pending: Vec<PendingPid>,
    own_pid: i32,
}

/// A PID that may become a container's init process.
#[derive(Debug)]
enum PendingPid {
    /// `/proc` does not have it, or not all of it. At this time it was missed.
    NotInProc { pid: i32, until: Duration },
    /// The runtime is creating a container of it. An exec session is none: it is born with its container's mounts.
    InCreation { process: Process, since: Duration },
}

impl StartDetector {
    pub(super) fn new(own_pid: i32) -> Self {
        Self { last_pid: 0, last_scan: Duration::ZERO, pending: Vec::new(), own_pid }
    }

    /// The pause until a process in creation is looked at again.
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

    /// Looks at the processes that were started since the last scan, unless nothing `may_start`, and at those that
    /// are in creation.
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

    /// Returns the new PIDs; where the last PID does not show them, all PIDs, and `true`.
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

/// What a PID turned out to be.
enum Classification {
    /// With the process, where it was opened before it had its name.
    Named(RootProcess, Option<Process>),
    Unidentified(Process),
    Pending(PendingPid),
    Missed,
    /// Another process' child or thread.
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
        // The runtime is creating a container of it. It is opened at once, so that its end and its code are reported
        // though it were never seen with the container's mounts.
        (_, Ok(Lookup::Root(root))) if root.has_mounts => match Process::open(root.pid, root.started, procfs) {
            Some(process) => Classification::Pending(PendingPid::InCreation { process, since: now }),
            None => Classification::Missed,
        },
        (_, Ok(Lookup::Other)) => Classification::Ignored,
        // One without mounts is exiting, as an exec session may be.
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
    /// One that has seen all processes up to this PID, a moment ago.
    pub(super) fn after(last_pid: i32) -> Self {
        Self { last_pid, ..Self::new(std::process::id().cast_signed()) }.since(crate::clock::now())
    }

    /// Its last scan was at this time.
    pub(super) fn since(self, last_scan: Duration) -> Self {
        Self { last_scan, ..self }
    }
}
