//! `aux-shim start-after`: executes a command once another container of the pod has started and is idle.
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
use crate::observe::{Activity, Procfs};

const SCAN_INTERVAL: Duration = Duration::from_millis(20);
/// A container is idle when all threads of its process have slept in each scan of this time. A thread that is starved of
/// CPU is runnable, and one whose program is being loaded waits for the disk: neither sleeps.
const IDLE_TIME: Duration = Duration::from_millis(500);
/// Program of a collector that never sleeps before the training writes its metrics file: one of its threads polls for
/// that file without a pause (`checkMetricFile` in Katib's `main.go`).
const SPINNING_COLLECTOR: &str = "file-metricscollector";
/// CPU time after which that collector has looked for the training, which it does at its start.
const SPINNING_COLLECTOR_CPU: Duration = Duration::from_millis(400);
/// After this time the other container counts as one that cannot start, and the command runs without it.
const START_TIMEOUT: Duration = Duration::from_mins(15);
const REPORT_DELAY: Duration = Duration::from_secs(10);
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Waits, then executes the command. Returns only if that fails.
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

/// The state of the other container at a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherContainer {
    Absent,
    Busy,
    Idle,
}

/// Summarizes earlier scans.
#[derive(Debug, Default)]
struct Wait {
    was_there: bool,
    idle_since: Option<Duration>,
}

impl Wait {
    /// Returns true if the command may run after this time: the other container has been idle for a while, or has ended.
    fn is_over(&mut self, seen: OtherContainer, waited: Duration) -> bool {
        let is_ready = match seen {
            OtherContainer::Absent => self.was_there,
            OtherContainer::Busy => false,
            OtherContainer::Idle => waited.saturating_sub(*self.idle_since.get_or_insert(waited)) >= IDLE_TIME,
        };
        self.was_there |= seen != OtherContainer::Absent;
        if seen == OtherContainer::Busy {
            self.idle_since = None;
        }
        is_ready || waited >= START_TIMEOUT
    }
}

fn observe(procfs: &Procfs, argument: &str) -> OtherContainer {
    let mut pids = procfs.roots().into_iter().map(|root| root.pid);
    let found = pids.find_map(|pid| Some((pid, procfs.program_with_argument(pid, argument)?)));
    let Some((pid, program)) = found else { return OtherContainer::Absent };
    match procfs.activity(pid) {
        Some(activity) if is_idle(&program, activity) => OtherContainer::Idle,
        _ => OtherContainer::Busy,
    }
}

/// Returns true if a process sleeps, or is the collector that spins after it has looked for the training.
fn is_idle(program: &str, activity: Activity) -> bool {
    let has_looked = program.ends_with(SPINNING_COLLECTOR) && activity.cpu >= SPINNING_COLLECTOR_CPU;
    !activity.runs || (has_looked && !activity.waits_for_disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_runs_once_other_container_is_idle_or_ended() {
        type Scans<'a> = &'a [(u64, OtherContainer)];
        use OtherContainer::{Absent, Busy, Idle};
        let ms = Duration::from_millis;
        let cases: [(&str, Scans, bool); 7] = [
            ("not started", &[(0, Absent), (60_000, Absent)], false),
            ("starting", &[(0, Absent), (20, Busy), (60_000, Busy)], false),
            ("idle, not for long", &[(0, Idle), (499, Idle)], false),
            ("idle long enough", &[(0, Busy), (20, Idle), (520, Idle)], true),
            ("busy in between", &[(0, Idle), (400, Busy), (420, Idle), (900, Idle)], false),
            ("ended", &[(0, Busy), (20, Absent)], true),
            ("never started", &[(0, Absent), (900_000, Absent)], true),
        ];
        for (name, scans, expected) in cases {
            let mut wait = Wait::default();
            let is_over = scans.iter().map(|(at, seen)| wait.is_over(*seen, ms(*at))).last();
            assert_eq!(is_over, Some(expected), "{name}");
        }
    }

    #[test]
    fn spinning_collector_is_idle_after_its_cpu_time() {
        let ms = Duration::from_millis;
        let cases = [
            ("python3", (false, false, 0), true),
            ("python3", (true, false, 9000), false),
            ("/file-metricscollector", (true, false, 390), false),
            ("/file-metricscollector", (true, false, 400), true),
            ("/file-metricscollector", (true, true, 400), false),
        ];
        for (program, (runs, waits_for_disk, cpu), expected) in cases {
            let activity = Activity { runs, waits_for_disk, cpu: ms(cpu) };
            assert_eq!(is_idle(program, activity), expected, "{program} {activity:?}");
        }
    }
}
