//! Waits in unit tests.

use core::time::Duration;
use std::thread;
use std::time::Instant;

/// The longest wait of a test.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Waits until a fact holds. Panics with the fact if it does not hold within [`LIMIT`].
pub fn eventually(fact: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "not in time: {fact}");
        thread::sleep(Duration::from_millis(1));
    }
}
