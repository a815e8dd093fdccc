//! A file through device memory, and what holds it up.

use std::cell::RefCell;
use std::fs::{File, OpenOptions, remove_file};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::copies::Large;
use super::{Failure, Outcome, Rig, Subject, Workload};
use crate::cli::source::failed;
use crate::memory::{Buffer, Device, Pinned};
use crate::streaming::{FileSource, Job, Streamer, Through};

/// As `ringmem stream` cuts a file.
const CHUNK: u64 = 4 << 20;

/// Bytes that the system has in its page cache, to a device: beside it the reading alone, and the copying alone.
pub(super) fn stream(rig: &Rig, run: impl FnOnce(Workload<'_>) -> Outcome) -> Outcome {
    let path = std::env::temp_dir().join(format!("ringmem-bench-{}", std::process::id()));
    let opened = OpenOptions::new().write(true).create_new(true).open(&path).and_then(|file| {
        let opened = fill(file, rig.bytes).and_then(|()| FileSource::open(&path));
        // It is read to its end all the same.
        remove_file(&path)?;
        opened
    });
    let file = RefCell::new(opened.map_err(|error| Failure::Fact(format!("{}: {error}", path.display())))?);
    let chunk = CHUNK.min(rig.bytes as u64);
    let mut streamer = Streamer::builder(&rig.backend, rig.device).chunk(chunk).depth(4).staging(2).build()?;
    let mut staging = Buffer::<u8, _>::new(Pinned::new(&rig.backend, rig.device), chunk as usize)?;
    let copying = RefCell::new(Large::new(rig, &Pinned::new(&rig.backend, rig.device), &Device::new(&rig.backend, rig.device), rig.bytes)?);
    let ours = || {
        let begun = Instant::now();
        let streamed = streamer.run(Job::new(&mut *file.borrow_mut()), &mut Through);
        let took = begun.elapsed();
        streamed.map_err(|interrupted| failed(&path, interrupted.cause))?;
        Ok(took.as_nanos() as f64)
    };
    let reading = RefCell::new(|| {
        let begun = Instant::now();
        read(&mut file.borrow_mut(), staging.as_mut_slice()?, &path)?;
        Ok::<f64, Failure>(begun.elapsed().as_nanos() as f64)
    });
    let read_alone = || reading.borrow_mut()();
    let copy_alone = || copying.borrow_mut().turn();
    let longer = || Ok(reading.borrow_mut()()?.max(copying.borrow_mut().turn()?));
    let subjects = vec![
        Subject { name: "ringmem Streamer", turn: Box::new(ours) },
        Subject { name: "the longer alone", turn: Box::new(longer) },
        Subject { name: "alone: reading", turn: Box::new(read_alone) },
        Subject { name: "alone: copying", turn: Box::new(copy_alone) },
    ];
    run(Workload { name: "stream", unit: "ns", aim: Some(1.03), subjects })
}

fn fill(mut file: File, bytes: usize) -> std::io::Result<()> {
    let piece = vec![7; bytes.min(1 << 20)];
    let mut left = bytes;
    while left > 0 {
        let piece = &piece[..left.min(piece.len())];
        file.write_all(piece)?;
        left -= piece.len();
    }
    Ok(())
}

fn read(file: &mut FileSource, buffer: &mut [u8], path: &Path) -> Outcome {
    let mut at = 0;
    while at < file.len() {
        let length = (file.len() - at).min(buffer.len() as u64) as usize;
        file.read_exact(&mut buffer[..length], at).map_err(|cause| failed(path, cause))?;
        at += length as u64;
    }
    Ok(())
}
