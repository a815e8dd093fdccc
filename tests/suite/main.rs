//! Tests without their own process, in one program, which compiles each generic function once.
#![cfg(feature = "std")]

use std::thread;
use std::time::{Duration, Instant};

mod broken;
mod clean;
mod clocks;
mod fork;
mod held;
mod rights;

mod adaptors;
mod bridge;
mod buffers;
mod cache;
mod channel;
mod chunked;
mod conformance;
mod copy;
mod describe;
mod dlpack;
mod double_buffer;
mod errors;
mod grid;
mod host_backend;
mod host_sim;
mod hostile_names;
mod loom_wait;
mod manager;
mod mirror;
mod monitor;
mod own_kernels;
mod peers;
mod pool;
mod pools;
mod prefetch;
#[cfg(feature = "prometheus")]
mod prometheus;
mod registered;
mod shared;
mod shared_owned;
mod snapshot;
mod stream;
mod stream_set;
mod streaming;
#[cfg(feature = "tracing")]
mod trace;
mod typed_launch;
mod uses;
mod wait;
mod wait_kinds;
mod wait_streams;

const DEPTH: u64 = if cfg!(debug_assertions) { 1 } else { 8 };
/// Faults of one call that a sweep tries: the number of further calls, polls, depends on the load.
const MOST_FAULTS: u64 = 30 * DEPTH;

/// The longest wait of a test.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a fact holds.
#[track_caller]
pub fn eventually(fact: &str, mut holds: impl FnMut() -> bool) {
    let (begun, mut polls) = (Instant::now(), 0);
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {fact}");
        polls += 1;
        if polls < 100 { thread::yield_now() } else { thread::sleep(Duration::from_micros(50)) }
    }
}
