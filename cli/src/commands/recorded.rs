//! Files of recorded allocations, which `replay` and `view` read.

use std::path::Path;

use ringmem::streaming::{FileSource, Source};
use ringmem_recordings::{Format, LeftOut, Recording};

use crate::{Failure, counted, failed, size};

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

/// The failure of a recording without allocations, and the remedy.
pub(super) fn no_allocations(recording: &Recording) -> String {
    let remedy = match recording.format {
        Format::PyTorch => "see `torch.cuda.memory._record_memory_history`",
        Format::Rmm => "see `rmm.enable_logging`, and `flush` at the end",
        _ => "a `Logged` memory records them, and `Snapshot::calls` adds them to a snapshot",
    };
    let left_out = left_out(&recording.left_out).map_or_else(String::new, |parts| format!("; left out: {parts}"));
    format!("no allocations were recorded: {remedy}{left_out}")
}

/// A list of the parts that were not read; `None` if there are none.
pub(super) fn left_out(parts: &[LeftOut]) -> Option<String> {
    let texts = parts.iter().map(|LeftOut { kind, count }| match kind.as_str() {
        "host_traces" => format!("{} of host memory", counted(*count, "event")),
        "host_segments" => format!("{} of host memory", counted(*count, "segment")),
        "other kinds" => format!("{} of other unknown kinds", counted(*count, "event")),
        kind => format!("{} of the unknown kind {kind:?}", counted(*count, "event")),
    });
    (!parts.is_empty()).then(|| texts.collect::<Vec<_>>().join(", "))
}

/// Accepts at most `most` events.
pub(super) fn parse(bytes: Vec<u8>, most: usize) -> Result<Recording, String> {
    let too_many = || format!("a recording of more than {most} events");
    // Counted before anything is stored. With the columns of RMM's log, there is one more.
    if bytes.iter().filter(|&&byte| byte == b'\n').count() > most.saturating_add(1) && Recording::has_an_event_per_line(&bytes) {
        return Err(too_many());
    }
    let recording = Recording::parse(bytes).map_err(|error| error.to_string())?;
    let events: usize = recording.devices.iter().map(|device| device.events.len()).sum();
    if events > most { Err(too_many()) } else { Ok(recording) }
}
