//! Runs a shim, and reads its log line by line.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::{Container, Payload, Pod, WAIT_TIMEOUT, first_child, status_field, until};

/// Holds a running shim and its log.
pub(crate) struct Shim {
    pub(crate) container: Container,
    lines: mpsc::Receiver<String>,
    log: String,
}

impl Shim {
    /// Starts it, and waits until no start of a container can be missed.
    pub(super) fn start(mut command: Command) -> Self {
        let mut parent = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(parent.stderr.take().unwrap());
        let (send, lines) = mpsc::channel();
        thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut shim = Self { container: Container { parent }, lines, log: String::new() };
        shim.until_logged("watching");
        shim
    }

    /// Starts a payload in the pod as [`observe`](Self::observe) does.
    pub(crate) fn payload(&mut self, pod: &Pod, name: &str, code: u8) -> Payload {
        self.observe(pod, name, || pod.payload(name, code))
    }

    /// Has a container of this name created, and started once the shim has scanned its process. Waits until the shim has observed the
    /// start.
    pub(crate) fn observe<T>(&mut self, pod: &Pod, name: &str, create: impl FnOnce() -> T) -> T {
        let started = format!("container started container={name}");
        let before = self.log().matches(&started).count();
        pod.hold();
        let created = create();
        self.until_scanned();
        pod.unhold();
        self.until_logged_times(before + 1, &started);
        created
    }

    /// Waits until the shim has scanned once more: it wakes, scans, and sleeps again.
    pub(crate) fn until_scanned(&self) {
        let function = format!("/proc/{}/wchan", self.container.init());
        let sleeps = || fs::read_to_string(&function).is_ok_and(|function| function.contains("poll"));
        until("the shim's sleep", sleeps);
        let wake_ups = self.wake_ups();
        until("a scan of the shim", || self.wake_ups() > wake_ups && sleeps());
    }

    /// Returns the log so far.
    pub(crate) fn log(&mut self) -> &str {
        for line in self.lines.try_iter() {
            self.log += &(line + "\n");
        }
        &self.log
    }

    /// Waits for a line of the log with this text.
    pub(crate) fn until_logged(&mut self, text: &str) {
        self.until_logged_times(1, text);
    }

    /// Waits until the log has so many lines with this text.
    pub(crate) fn until_logged_times(&mut self, times: usize, text: &str) {
        let began = Instant::now();
        while self.log.matches(text).count() < times {
            match self.lines.recv_timeout(WAIT_TIMEOUT.saturating_sub(began.elapsed())) {
                Ok(line) => self.log += &(line + "\n"),
                Err(error) => panic!("no {text:?} in the log ({error}):\n{}", self.log),
            }
        }
    }

    /// Stops the shim, as if the node were busy, until it is resumed.
    pub(crate) fn suspend(&self) {
        self.container.signal("STOP");
    }

    pub(crate) fn resume(&self) {
        // nsenter stops with its child, and continues it with itself.
        self.container.continue_parent();
        self.container.signal("CONT");
    }

    /// Returns how often the shim has gone to sleep, and so has woken.
    pub(crate) fn wake_ups(&self) -> u64 {
        status_field(&self.container.init(), "voluntary_ctxt_switches").parse().unwrap()
    }

    /// Waits for the shim's end. Returns its exit code and its whole log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        loop {
            // The log ends when the process does.
            match self.lines.recv_timeout(WAIT_TIMEOUT.saturating_sub(began.elapsed())) {
                Ok(line) => self.log += &(line + "\n"),
                Err(mpsc::RecvTimeoutError::Disconnected) => return (self.container.wait().code(), self.log),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("the shim does not end:\n{}", self.log),
            }
        }
    }

    /// Sends SIGTERM, unless it has just ended by itself, and waits for its end.
    pub(crate) fn terminate(self) -> (Option<i32>, String) {
        if let Some(pid) = first_child(self.container.parent.id()) {
            let _ = Command::new("kill").args(["-s", "TERM", &pid]).status();
        }
        self.end()
    }

    /// Sends SIGKILL, and returns its whole log.
    pub(crate) fn kill(self) -> String {
        self.container.kill();
        self.end().1
    }
}
