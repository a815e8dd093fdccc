//! Clocks that panic: [`clock`] once on each thread that called [`strike`], [`broken`] while its flag is set.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
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

pub fn broken() -> (impl Fn() -> u64 + Send + Sync + 'static, Arc<AtomicBool>) {
    let is_broken = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&is_broken);
    let clock = move || {
        assert!(!theirs.load(Relaxed), "a clock that a test asked for");
        7
    };
    (clock, is_broken)
}
