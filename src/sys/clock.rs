//! Monotonic nanoseconds.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// A monotonic clock in nanoseconds.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

pub(crate) fn monotonic() -> Clock {
    let born = Instant::now();
    Arc::new(move || nanoseconds(born.elapsed()))
}

/// A clock that is read in two ways, from one origin.
#[derive(Clone)]
pub(crate) struct Clocks {
    pub exact: Clock,
    /// A few milliseconds late on Linux, for a fifth of the time: an exact reading takes as long as the rest of an allocation.
    pub coarse: Clock,
}

impl Clocks {
    pub fn both(clock: Clock) -> Self {
        Self { exact: Arc::clone(&clock), coarse: clock }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn of_system() -> Self {
        let since_boot = |clock| {
            let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a place for the result. Both clocks exist, and are never negative.
            unsafe { libc::clock_gettime(clock, &raw mut now) };
            (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
        };
        // The coarse clock may show an earlier time for some milliseconds.
        let born = since_boot(libc::CLOCK_MONOTONIC_COARSE);
        let of = |clock| -> Clock { Arc::new(move || since_boot(clock).saturating_sub(born)) };
        Self { exact: of(libc::CLOCK_MONOTONIC), coarse: of(libc::CLOCK_MONOTONIC_COARSE) }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub fn of_system() -> Self {
        Self::both(monotonic())
    }
}

/// Saturates after 584 years.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn both_clocks_show_nearly_the_same_time() {
        let Clocks { exact, coarse } = Clocks::of_system();
        for _ in 0..10 {
            let (before, late, after) = (exact(), coarse(), exact());
            assert!(before <= after && late <= after);
            thread::sleep(Duration::from_millis(5));
        }
        // A tick of the coarse clock takes at most 10 ms.
        let before = exact();
        thread::sleep(Duration::from_millis(20));
        assert!(coarse() >= before);
    }
}
