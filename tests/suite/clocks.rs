//! A clock that panics once on each thread that called [`strike`].

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use ringmem::backend::host::Clock;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

pub fn clock() -> Clock {
    let born = Instant::now();
    Arc::new(move || {
        let left = LEFT.get();
        LEFT.set(left.saturating_sub(1));
        assert_ne!(left, 1, "the test's clock panics");
        born.elapsed().as_nanos() as u64
    })
}

pub fn strike(number: u64) {
    LEFT.set(number);
}

pub fn has_struck() -> bool {
    LEFT.replace(0) == 0
}
