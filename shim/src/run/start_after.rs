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
use crate::observe::{Activity, Procfs};

const SCAN_INTERVAL: Duration = Duration::from_millis(20);
/// A container is idle when all threads of its process have slept in each scan of this time. One that is starved of CPU is
/// runnable, and one that is being loaded waits for the disk, which are other states.
const IDLE_TIME: Duration = Duration::from_millis(500);
/// This collector never sleeps before the training writes its metrics file: one of its threads looks for that without a
/// pause (`checkMetricFile` in Katib's `main.go`).
const SPINNING_COLLECTOR: &str = "file-metricscollector";
/// After this CPU time it has looked for the training: it does so as it starts, beside the thread that spins.
const SPINNING_COLLECTOR_CPU: Duration = Duration::from_millis(400);
/// A container that is not idle by then is taken for one that cannot start, and the command runs without it.
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
    Busy,
    Settled,
}

/// What earlier scans have seen.
#[derive(Debug, Default)]
struct Wait {
    was_there: bool,
    settled_since: Option<Duration>,
}

impl Wait {
    /// Whether the command may run after this time. If the other container has started and ended, nothing is left to wait
    /// for.
    fn is_over(&mut self, seen: Seen, waited: Duration) -> bool {
        let is_ready = match seen {
            Seen::Absent => self.was_there,
            Seen::Busy => false,
            Seen::Settled => waited.saturating_sub(*self.settled_since.get_or_insert(waited)) >= IDLE_TIME,
        };
        self.was_there |= seen != Seen::Absent;
        if seen == Seen::Busy {
            self.settled_since = None;
        }
        is_ready || waited >= START_TIMEOUT
    }
}

fn observe(procfs: &Procfs, argument: &str) -> Seen {
    let mut pids = procfs.pids().into_iter();
    let found = pids.find_map(|pid| Some((pid, procfs.program_with_argument(pid, argument)?)));
    let Some((pid, program)) = found else { return Seen::Absent };
    match procfs.activity(pid) {
        Some(activity) if is_settled(&program, activity) => Seen::Settled,
        _ => Seen::Busy,
    }
}

/// Whether a process has nothing to do, or spins after it has looked for the training.
fn is_settled(program: &str, activity: Activity) -> bool {
    let has_looked = program.ends_with(SPINNING_COLLECTOR) && activity.cpu >= SPINNING_COLLECTOR_CPU;
    !activity.runs || (has_looked && !activity.waits_for_disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_runs_once_other_container_is_idle_or_ended() {
        type Scans<'a> = &'a [(u64, Seen)];
        use Seen::{Absent, Busy, Settled};
        let ms = Duration::from_millis;
        let cases: [(&str, Scans, bool); 7] = [
            ("not started", &[(0, Absent), (60_000, Absent)], false),
            ("starting", &[(0, Absent), (20, Busy), (60_000, Busy)], false),
            ("settled, not for long", &[(0, Settled), (499, Settled)], false),
            ("settled long enough", &[(0, Busy), (20, Settled), (520, Settled)], true),
            ("busy in between", &[(0, Settled), (400, Busy), (420, Settled), (900, Settled)], false),
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
            assert_eq!(is_settled(program, activity), expected, "{program} {activity:?}");
        }
    }
}
