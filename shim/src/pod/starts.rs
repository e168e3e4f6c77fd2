//! Tracks announced starts that have not been observed.
//!
//! The kubelet starts the containers of a pod one after the other, and announces each attempt. An announcement can only
//! make the shim scan more often or wait longer.

use std::time::Duration;

use super::Instance;

/// Time after an announcement in which scans are frequent: the runtime takes a fraction of a second to start a container.
const START_EXPECTED_FOR: Duration = Duration::from_secs(30);
/// Time limit of a start, after which the kubelet tries again and announces that: its `runtimeRequestTimeout`, 2 minutes
/// by default and often set to 15, and the back-off.
const START_TIMEOUT: Duration = Duration::from_mins(16);
/// Time in which the kubelet announces the next attempt after a failed one: its back-off of 10 to 15 s (`backOffPeriod`,
/// with jitter), and with `imagePullPolicy: Always` a registry's answer.
const RETRY_TIMEOUT: Duration = Duration::from_secs(150);
/// Time after the watch began in which starts may have been announced before it.
const LISTENER_WARMUP: Duration = Duration::from_secs(30);
/// Number of starts of other containers that are remembered.
const FOREIGN_INSTANCES_LIMIT: usize = 64;

/// Tells if starts are announced in this pod. They are not for a container with an `/etc/hosts` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announcements {
    /// No start has shown it yet.
    Unverified,
    /// An observed start had been announced.
    Verified,
    /// An observed start had not been announced.
    Unavailable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingStarts {
    announcements: Announcements,
    listening_since: Duration,
    start_timeout: Duration,
    retry_timeout: Duration,
    /// Announcements without an observed start.
    pending: usize,
    /// Pending announcements since the last scan.
    since_last_scan: usize,
    /// Times of the first and the last pending announcement.
    since: Duration,
    last: Duration,
    /// Time of the last observed start.
    last_seen: Duration,
    /// Time by which the kubelet will have retried a failed start.
    retry_deadline: Duration,
    /// Time at which an unobserved start is reported, if a process was missed.
    report_at: Option<Duration>,
    /// Time at which a process was last missed.
    pid_missed: Option<Duration>,
    /// Instances of init containers and ephemeral containers.
    foreign: Vec<String>,
}

impl PendingStarts {
    /// Receives announcements from `now` on. `timeout` replaces those above.
    pub(super) fn new(timeout: Option<Duration>, now: Duration) -> Self {
        Self {
            announcements: Announcements::Unverified,
            listening_since: now,
            start_timeout: timeout.unwrap_or(START_TIMEOUT),
            retry_timeout: timeout.unwrap_or(RETRY_TIMEOUT),
            pending: 0,
            since_last_scan: 0,
            since: Duration::ZERO,
            last: Duration::ZERO,
            last_seen: Duration::ZERO,
            retry_deadline: Duration::ZERO,
            report_at: None,
            pid_missed: None,
            foreign: Vec::new(),
        }
    }

    pub(super) fn announce(&mut self, count: usize, now: Duration) {
        if count == 0 {
            return;
        }
        if self.pending == 0 {
            self.since = now;
        }
        self.pending = self.pending.saturating_add(count);
        self.since_last_scan = self.since_last_scan.saturating_add(count);
        self.last = now;
        self.report_at = Some(now + self.retry_timeout);
    }

    /// Returns true if an announced start has not been observed, or a failed one will be retried.
    pub(super) fn has_pending_or_retry(&self, now: Duration) -> bool {
        self.pending > 0 || now < self.retry_deadline
    }

    /// Returns true if a start was announced so recently that it may be observed at any moment.
    pub(super) fn has_recent(&self, now: Duration) -> bool {
        self.pending > 0 && now < self.last + START_EXPECTED_FOR
    }

    /// Returns true if the observed starts were announced.
    pub(super) fn announcements_work(&self) -> bool {
        self.announcements == Announcements::Verified
    }

    /// Returns the time at which the kubelet was last known to start a container.
    pub(super) fn last_activity(&self) -> Duration {
        self.last.max(self.last_seen)
    }

    /// Returns the time by which the kubelet will have retried a start that failed at this time.
    pub(super) fn retry_deadline(&self, ended: Duration) -> Duration {
        ended.max(self.last_activity()) + self.retry_timeout
    }

    pub(super) fn pid_missed(&mut self, now: Duration) {
        self.pid_missed = Some(now);
    }

    pub(super) fn start_seen(&mut self, instance: &Instance) {
        self.last_seen = self.last_seen.max(instance.started);
        if instance.started <= self.listening_since {
            return;
        }
        if self.pending > 0 {
            self.announcements = Announcements::Verified;
            self.consume(instance.started);
        } else if instance.started > self.listening_since + LISTENER_WARMUP {
            self.announcements = Announcements::Unavailable;
        }
    }

    pub(super) fn foreign_start_seen(&mut self, instance: &Instance) {
        if self.foreign.contains(&instance.id) {
            return;
        }
        if self.foreign.len() == FOREIGN_INSTANCES_LIMIT {
            self.foreign.remove(0);
        }
        self.foreign.push(instance.id.clone());
        self.start_seen(instance);
    }

    /// Counts an unidentified container as an announced one. Returns true if it can have been one.
    pub(super) fn unidentified_exit_seen(&mut self, now: Duration) -> bool {
        let is_announced = self.pending > 0;
        self.consume(now);
        is_announced || !self.announcements_work() || now < self.listening_since + LISTENER_WARMUP
    }

    /// Records an observed start. The kubelet starts one container after the other, so an earlier announcement without a
    /// start was a failed attempt, or its start was missed.
    fn consume(&mut self, at: Duration) {
        if self.pending > 1 {
            self.retry_deadline = at + self.retry_timeout;
        }
        self.report_at = (self.pending > 1).then_some(at);
        if self.pending == self.since_last_scan {
            self.since_last_scan = self.since_last_scan.saturating_sub(1);
        }
        self.pending = self.since_last_scan;
    }

    /// Records that all existing processes have been reported. Returns true if an announced start will not be observed any
    /// more, because a process was missed since.
    pub(super) fn scanned(&mut self, now: Duration) -> bool {
        self.since_last_scan = 0;
        if now >= self.last + self.start_timeout {
            self.pending = 0;
        }
        if self.report_at.is_none_or(|at| now < at) {
            return false;
        }
        // That of one that was announced after it.
        let next = self.last + self.retry_timeout;
        self.report_at = (self.pending > 0 && now < next).then_some(next);
        self.pid_missed.is_some_and(|missed| missed >= self.since)
    }

    /// Returns the times at which announced starts expire or are reported, and at which failed ones expire.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Duration> {
        let pending = (self.pending > 0).then(|| self.last + self.start_timeout);
        pending.into_iter().chain(self.report_at).chain([self.retry_deadline])
    }
}
