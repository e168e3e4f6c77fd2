//! `aux-shim start-after`: becomes a command once another container of the pod has started and is idle.
//!
//! Katib's metrics collector looks for the training's process once, when it starts. If the training has ended by then,
//! the collector waits for another container's process instead, which may never end (`GetMainProcesses` in Katib's
//! `pns.go`). The command keeps this process' PID and its place below the runtime, as the collector requires.

use std::ffi::OsString;
use std::thread;
use std::time::Duration;

use contract::args::StartAfterArgs;

use super::child::{StartError, become_command};
use crate::clock::now;
use crate::log;
use crate::observe::Procfs;

const SCAN_INTERVAL: Duration = Duration::from_millis(20);
/// A container is idle when all threads of its process have slept in each scan of this time. One that is starved of CPU is
/// runnable, and one that is being loaded waits for the disk, which are other states.
const IDLE_TIME: Duration = Duration::from_millis(500);
/// A container that has used as much CPU has been loaded, and looked. Katib's collector never sleeps before the training has
/// begun to write: it looks for the metrics' file in a loop (`checkMetricFile` in its `main.go`).
const LOADED_CPU_TIME: Duration = Duration::from_secs(1);
/// A container that has not started by then is taken for one that cannot, and the command runs without it.
const START_TIMEOUT: Duration = Duration::from_mins(15);
const REPORT_DELAY: Duration = Duration::from_secs(10);
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Waits, then becomes the command. Returns only where that cannot be run.
pub(crate) fn run(args: &StartAfterArgs, command: &[OsString]) -> StartError {
    let procfs = Procfs::new("/proc");
    let mut wait = Wait::default();
    let began = now();
    let mut report_at = began + REPORT_DELAY;
    while !wait.is_over(observe(&procfs, &args.argument), now().saturating_sub(began)) {
        if now() >= report_at {
            let seconds = now().saturating_sub(began).as_secs();
            let container: [(&str, &dyn std::fmt::Display); 2] = [("argument", &args.argument), ("seconds", &seconds)];
            log::info("the command waits for another container of this pod to start", &container);
            report_at = now() + REPORT_INTERVAL;
        }
        thread::sleep(SCAN_INTERVAL);
    }
    become_command(command)
}

/// What a scan has seen of the other container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Absent,
    /// The CPU time that it has used.
    Busy(Duration),
    Asleep,
}

/// What earlier scans have seen.
#[derive(Debug, Default)]
struct Wait {
    was_there: bool,
    asleep_since: Option<Duration>,
}

impl Wait {
    /// Whether the command may run after this time. If the other container has started and ended, nothing is left to wait
    /// for.
    fn is_over(&mut self, seen: Seen, waited: Duration) -> bool {
        let is_ready = match seen {
            Seen::Absent => self.was_there,
            Seen::Busy(used) => used >= LOADED_CPU_TIME,
            Seen::Asleep => waited.saturating_sub(*self.asleep_since.get_or_insert(waited)) >= IDLE_TIME,
        };
        self.was_there |= seen != Seen::Absent;
        if matches!(seen, Seen::Busy(_)) {
            self.asleep_since = None;
        }
        is_ready || waited >= START_TIMEOUT
    }
}

fn observe(procfs: &Procfs, argument: &str) -> Seen {
    let found = procfs.pids().into_iter().find(|&pid| procfs.is_root_with_argument(pid, argument));
    match found {
        None => Seen::Absent,
        Some(pid) if procfs.is_asleep(pid) => Seen::Asleep,
        Some(pid) => Seen::Busy(procfs.cpu_time(pid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_runs_once_the_other_container_has_slept_or_computed_for_a_while_or_has_ended() {
        type Scans<'a> = &'a [(u64, Seen)];
        use Seen::{Absent, Asleep, Busy};
        let ms = Duration::from_millis;
        let starting = Busy(ms(990));
        let cases: [(&str, Scans, bool); 8] = [
            ("not started", &[(0, Absent), (60_000, Absent)], false),
            ("starved of CPU", &[(0, Absent), (20, starting), (60_000, starting)], false),
            ("computing for long enough", &[(0, Absent), (20, starting), (1_500, Busy(ms(1000)))], true),
            ("asleep, not for long", &[(0, Asleep), (499, Asleep)], false),
            ("asleep long enough", &[(0, starting), (20, Asleep), (520, Asleep)], true),
            ("busy in between", &[(0, Asleep), (400, starting), (420, Asleep), (900, Asleep)], false),
            ("ended", &[(0, starting), (20, Absent)], true),
            ("never started", &[(0, Absent), (900_000, Absent)], true),
        ];
        for (name, scans, expected) in cases {
            let mut wait = Wait::default();
            let is_over = scans.iter().map(|(at, seen)| wait.is_over(*seen, ms(*at))).last();
            assert_eq!(is_over, Some(expected), "{name}");
        }
    }
}
