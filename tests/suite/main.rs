//! Tests without their own process, in one program, which compiles each generic function once.
#![cfg(feature = "std")]

use std::thread;
use std::time::{Duration, Instant};

mod rig;

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

/// Runs an ignored test of this program in a process of its own, with a value of `RINGMEM_VISIBILITY`.
pub fn passes_with_visibility(value: &str, test: &str) {
    let program = std::env::current_exe().expect("this test's program");
    let run = std::process::Command::new(program).args(["--exact", test, "--ignored"]).env("RINGMEM_VISIBILITY", value).output();
    let output = run.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
