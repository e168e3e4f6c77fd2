//! The shim's clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Returns the time since the machine's boot, suspension included.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Returns the CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
