//! The shim's clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine's boot, in suspension too.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
