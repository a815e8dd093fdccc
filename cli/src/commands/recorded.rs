//! Files of recorded allocations, which `replay` and `view` read.

use std::path::Path;

use ringmem::streaming::{FileSource, Source};
use ringmem_recordings::Recording;

use crate::{Failure, failed, size};

/// The largest file in bytes. Each event takes some hundred bytes of memory.
const LONGEST: u64 = 1 << 30;

pub(super) fn of_file(path: &Path, fact: &dyn std::fmt::Display) -> Failure {
    Failure::Fact(format!("{}: {fact}", path.display()))
}

pub(super) fn contents(source: &mut FileSource) -> Result<Vec<u8>, Failure> {
    if source.len() > LONGEST {
        return Err(of_file(source.path(), &format_args!("a recording of more than {}", size::show(LONGEST))));
    }
    let mut bytes = vec![0; source.len() as usize];
    source.read_exact(&mut bytes, 0).and_then(|()| source.check()).map_err(|cause| failed(source.path(), cause))?;
    Ok(bytes)
}

/// Accepts at most `most` events.
pub(super) fn parse(bytes: Vec<u8>, most: usize) -> Result<Recording, String> {
    let too_many = || format!("a recording of more than {most} events");
    // A text has a line an event: counted before anything is stored.
    if bytes.first() != Some(&0x80) && bytes.iter().filter(|&&byte| byte == b'\n').count() > most {
        return Err(too_many());
    }
    let recording = Recording::parse(bytes).map_err(|error| error.to_string())?;
    let events: usize = recording.devices.iter().map(|device| device.events.len()).sum();
    if events > most { Err(too_many()) } else { Ok(recording) }
}
