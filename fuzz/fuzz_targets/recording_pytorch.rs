//! Snapshots of PyTorch: any opcodes.

#![no_main]

#[path = "../recording/mod.rs"]
mod recording;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut pickle = vec![0x80, 4];
    pickle.extend(bytes);
    recording::check(pickle);
});
