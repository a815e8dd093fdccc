//! Tests of the readers and the models.

mod models;
mod native;
mod pickler;
mod pytorch;
mod rmm;

use ringmem_recordings::{Device, Kind, ReadError, Recording};

fn read(bytes: impl Into<Vec<u8>>) -> Recording {
    Recording::parse(bytes.into()).expect("a recording")
}

fn refuses(bytes: impl Into<Vec<u8>>) -> String {
    let error: ReadError = Recording::parse(bytes.into()).expect_err("no recording");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text:?}");
    text
}

/// Kind, block, size of each event.
fn events(device: &Device) -> Vec<(Kind, u32, u64)> {
    device.events.iter().map(|event| (event.kind, event.block, event.size)).collect()
}
