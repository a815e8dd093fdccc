//! ringmem's traces, tables and snapshots, and any other text.

#![no_main]

#[path = "../recording/mod.rs"]
mod recording;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    recording::check(bytes.to_vec());
});
