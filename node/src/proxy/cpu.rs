//! Whether a proxy was let run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Holds what the kernel has counted of the threads of a process and of its children, by their paths in `/proc`.
#[derive(Debug, Default)]
pub(super) struct CpuTimes(BTreeMap<PathBuf, Times>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    on_cpu: Duration,
    waited: Duration,
    /// True if the thread runs or waits for a CPU.
    is_ready: bool,
}

impl CpuTimes {
    /// Reads them. Has none of a process that does not run.
    pub(super) fn of(pid: u32) -> Self {
        let mut threads = threads_of(pid);
        let children = threads.iter().filter_map(|thread| fs::read_to_string(thread.join("children")).ok());
        let children: Vec<_> = children.flat_map(|pids| numbers(&pids)).filter_map(|pid| pid.try_into().ok()).collect();
        threads.extend(children.into_iter().flat_map(threads_of));
        Self(threads.into_iter().filter_map(|thread| Some((thread.clone(), times(&thread)?))).collect())
    }

    /// Returns the longest time since `earlier` for which one of the threads waited for a CPU. The kernel counts a wait at its end: all
    /// of `elapsed` is one where a thread is ready still, and has not run since.
    pub(super) fn longest_wait_since(&self, earlier: &Self, elapsed: Duration) -> Duration {
        let waits = self.0.iter().filter_map(|(thread, now)| {
            let before = earlier.0.get(thread)?;
            let has_not_run = before.is_ready && now.is_ready && before.on_cpu == now.on_cpu;
            Some(if has_not_run { elapsed } else { now.waited.saturating_sub(before.waited) })
        });
        waits.max().unwrap_or_default()
    }
}

/// Reads `schedstat` and the state (proc(5)).
fn times(thread: &Path) -> Option<Times> {
    let counted = fs::read_to_string(thread.join("schedstat")).ok()?;
    let [on_cpu, waited, ..] = numbers(&counted)[..] else { return None };
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    let [on_cpu, waited] = [on_cpu, waited].map(Duration::from_nanos);
    Some(Times { on_cpu, waited, is_ready: after_name.starts_with('R') })
}

fn threads_of(pid: u32) -> Vec<PathBuf> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().map(|thread| thread.path()).collect()
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::thread::sleep;
    use std::time::Instant;

    use nix::sys::signal::{Signal, killpg};
    use nix::unistd::Pid;

    use super::*;

    /// Ends its process group when dropped.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = killpg(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGKILL);
            let _ = self.0.wait();
        }
    }

    impl Killed {
        fn wait_in(&self, time: Duration) -> Duration {
            let before = CpuTimes::of(self.0.id());
            sleep(time);
            CpuTimes::of(self.0.id()).longest_wait_since(&before, time)
        }

        fn until(&self, time: Duration, is_so: impl Fn(Duration) -> bool) {
            let began = Instant::now();
            while !is_so(self.wait_in(time)) {
                assert!(began.elapsed() < Duration::from_mins(1));
            }
        }
    }

    fn start(script: &str) -> Killed {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let first = cpus.trim().split([',', '-']).next().unwrap();
        let mut on_one_cpu = Command::new("taskset");
        on_one_cpu.args(["--cpu-list", first, "sh", "-c", script]).process_group(0);
        Killed(on_one_cpu.spawn().unwrap())
    }

    #[test]
    fn threads_that_share_a_cpu_wait_for_it_and_sleeping_ones_do_not() {
        // A process, and its child.
        let busy = start("(while :; do :; done) & while :; do :; done");
        busy.until(Duration::from_millis(500), |waited| waited >= Duration::from_millis(100));
        let sleeping = start("exec sleep 60");
        sleeping.until(Duration::from_millis(100), |waited| waited == Duration::ZERO);
    }

    #[test]
    fn thread_that_is_ready_and_never_runs_has_waited_all_the_time() {
        let second = Duration::from_secs(1);
        let times = |on_cpu: u64, is_ready| {
            let times = Times { on_cpu: Duration::from_secs(on_cpu), waited: second, is_ready };
            CpuTimes(BTreeMap::from([(PathBuf::from("/proc/1/task/1"), times)]))
        };
        for (before, now, expected) in [
            (times(1, true), times(1, true), second),
            (times(1, true), times(2, true), Duration::ZERO),
            (times(1, false), times(1, false), Duration::ZERO),
            (CpuTimes::default(), times(1, true), Duration::ZERO),
        ] {
            assert_eq!(now.longest_wait_since(&before, second), expected, "{before:?} {now:?}");
        }
        assert!(CpuTimes::of(u32::MAX).0.is_empty(), "there is no such process");
    }
}
