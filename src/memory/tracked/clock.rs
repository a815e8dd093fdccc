use std::boxed::Box;

pub(super) type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// Some milliseconds late: the exact time would cost more than the rest of an allocation.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn coarse() -> Clock {
    use rustix::time::{ClockId, clock_gettime};
    Box::new(|| {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        // Since boot: never negative.
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn coarse() -> Clock {
    let born = std::time::Instant::now();
    Box::new(move || u64::try_from(born.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
