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

/// Saturates after 584 years.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
