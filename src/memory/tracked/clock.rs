//! The clock of a tracker.

use std::boxed::Box;

/// A monotonic clock in nanoseconds.
pub(super) type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The system's monotonic clock at its last tick, some milliseconds ago at most: reading the exact time would cost more than the rest of an
/// allocation.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn coarse() -> Clock {
    use rustix::time::{ClockId, clock_gettime};
    Box::new(|| {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        // Counts from the start of the system, so neither part is negative.
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    })
}

/// The monotonic clock.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn coarse() -> Clock {
    let born = std::time::Instant::now();
    Box::new(move || u64::try_from(born.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
