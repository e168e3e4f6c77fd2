//! Starts that the kubelet has announced, and that no process has been seen of.
//!
//! The kubelet starts the containers of a pod one after the other, and announces each attempt. An announcement only
//! ever makes the shim look closer or wait longer.

use std::time::Duration;

use super::Instance;

/// How long after its announcement a start is looked for at short intervals: the runtime takes a fraction of a second.
const START_EXPECTED_FOR: Duration = Duration::from_secs(30);
/// How long the runtime may work at a start before the kubelet tries again, which is another announcement: its
/// `runtimeRequestTimeout`, 2 minutes by default and often set to 15, and the back-off.
const START_TIMEOUT: Duration = Duration::from_mins(16);
/// How long after an attempt that failed the kubelet announces the next one: its back-off of 10 to 15 s
/// (`backOffPeriod`, with jitter), and with `imagePullPolicy: Always` a registry's answer.
const RETRY_TIMEOUT: Duration = Duration::from_secs(150);
/// How long after listening began a start may have been announced before that.
const LISTENER_WARMUP: Duration = Duration::from_secs(30);
/// How many starts of other containers are remembered.
const FOREIGN_INSTANCES_LIMIT: usize = 64;

/// Whether starts are announced in this pod. They are not for a container with an `/etc/hosts` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announcements {
    /// No start was seen yet that shows it.
    Unverified,
    /// A start was seen that had been announced.
    Verified,
    /// A start was seen that had not been announced.
    Unavailable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingStarts {
    announcements: Announcements,
    listening_since: Duration,
    start_timeout: Duration,
    retry_timeout: Duration,
    /// Announcements that no start was seen of.
    pending: usize,
    /// Those of them that came since the last scan.
    since_last_scan: usize,
    /// When the first and the last one came.
    since: Duration,
    last: Duration,
    /// When a start was last seen.
    last_seen: Duration,
    /// When the kubelet will have tried again to start a container whose start failed.
    retry_deadline: Duration,
    /// When to report that a start was not seen, if a process was missed.
    report_at: Option<Duration>,
    /// When a process was last missed.
    pid_missed: Option<Duration>,
    /// Instances of containers that are not the shim's concern: init containers, ephemeral ones.
    foreign: Vec<String>,
}

impl PendingStarts {
    /// Announcements are listened to from `now` on. `timeout` is in place of those above.
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

    /// Whether a start was announced that has not been seen, or one that failed will be tried again.
    pub(super) fn has_pending_or_retry(&self, now: Duration) -> bool {
        self.pending > 0 || now < self.retry_deadline
    }

    /// Whether one was announced so recently that it may be seen at any moment.
    pub(super) fn has_recent(&self, now: Duration) -> bool {
        self.pending > 0 && now < self.last + START_EXPECTED_FOR
    }

    /// Whether the pod's containers are announced, as far as was seen.
    pub(super) fn announcements_work(&self) -> bool {
        self.announcements == Announcements::Verified
    }

    /// When the kubelet was last known to start a container.
    pub(super) fn last_activity(&self) -> Duration {
        self.last.max(self.last_seen)
    }

    /// When the kubelet will have tried again, if what ended at this time was an attempt that failed.
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

    /// Takes a container that ended unidentified for one that was announced. Returns whether it can have been one.
    pub(super) fn unidentified_exit_seen(&mut self, now: Duration) -> bool {
        let is_announced = self.pending > 0;
        self.consume(now);
        is_announced || !self.announcements_work() || now < self.listening_since + LISTENER_WARMUP
    }

    /// A start was seen. The kubelet starts one container after the other, so what was announced before it and not
    /// seen was an attempt that failed, or is missed.
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

    /// All that exists now has been reported. Returns whether a start was announced and will not be seen any more, as a
    /// process that was missed since suggests.
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

    /// When announced starts are given up or reported, and when failed ones are given up.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Duration> {
        let pending = (self.pending > 0).then(|| self.last + self.start_timeout);
        pending.into_iter().chain(self.report_at).chain([self.retry_deadline])
    }
}
