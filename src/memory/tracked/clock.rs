//! What a tracker takes the time from.

use std::boxed::Box;

/// Nanoseconds of a clock that never goes back.
pub(super) type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The system's monotonic clock as of its last tick, some milliseconds ago at most: to read the exact one would take longer than all else that
/// is done for an allocation.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn coarse() -> Clock {
    use rustix::time::{ClockId, clock_gettime};
    Box::new(|| {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        // Since the system was started, so neither is below 0.
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    })
}

/// The monotonic clock.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn coarse() -> Clock {
    let born = std::time::Instant::now();
    Box::new(move || u64::try_from(born.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
