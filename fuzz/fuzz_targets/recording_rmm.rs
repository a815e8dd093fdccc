//! Logs of RMM: any lines below the columns.

#![no_main]

#[path = "../recording/mod.rs"]
mod recording;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut log = b"Thread,Time,Action,Pointer,Size,Stream\n".to_vec();
    log.extend(bytes);
    recording::check(log);
});
