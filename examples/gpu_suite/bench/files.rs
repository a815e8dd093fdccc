use std::cell::RefCell;
use std::error::Error;
use std::fs::{File, OpenOptions, remove_file};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use ringmem::memory::{Buffer, Device, Pinned};
use ringmem::streaming::{Cause, FileSource, Job, Sink, Streamer, Through};

use super::copies::Large;
use super::{Rig, Subject, Workload};
use crate::report::{Failure, demand};

const CHUNK: u64 = 4 << 20;

pub fn stream(rig: &Rig, name: &'static str) -> Result<(), Failure> {
    let path = std::env::temp_dir().join(format!("ringmem-gpu-suite-{}", std::process::id()));
    let file = RefCell::new(written(&path, rig.bytes)?);
    let is_back = name == "stream-back";
    let sink = RefCell::new(is_back.then(|| Vec::with_capacity(rig.bytes)));
    let chunk = CHUNK.min(rig.bytes as u64);
    let builder = Streamer::builder(&rig.backend, 0).chunk(chunk);
    let mut streamer = if is_back { builder.depth(6) } else { builder.depth(4).staging(2) }.build()?;
    let (pinned, device) = (Pinned::new(&rig.backend, 0), Device::new(&rig.backend, 0));
    let mut staging = Buffer::<u8, _>::new(pinned.clone(), chunk as usize)?;
    let copying = RefCell::new(Large::new(rig, &pinned, &device, rig.bytes)?);
    let back = if is_back { Some(Large::new(rig, &device, &pinned, rig.bytes)?) } else { None };
    let back = RefCell::new(back);
    let ours = || {
        let (mut file, mut sink) = (file.borrow_mut(), sink.borrow_mut());
        let begun = Instant::now();
        let job = Job::new(&mut *file);
        let streamed = match &mut *sink {
            Some(sink) => streamer.run(job.to(sink), &mut Through),
            None => streamer.run(job, &mut Through),
        };
        let took = begun.elapsed();
        streamed.map_err(|interrupted| failed(&path, &interrupted.cause))?;
        let holds = sink.as_ref().is_none_or(|sink| sink.len() == rig.bytes && sink.iter().all(|&byte| byte == 7));
        demand(holds, || "the streamed bytes differ from the file".to_owned())?;
        Ok(took.as_nanos() as f64)
    };
    let handling = RefCell::new(|| {
        let begun = Instant::now();
        read(&mut file.borrow_mut(), staging.as_mut_slice()?, &path, sink.borrow_mut().as_mut())?;
        Ok::<f64, Failure>(begun.elapsed().as_nanos() as f64)
    });
    let handle_alone = || handling.borrow_mut()();
    let copy_alone = || copying.borrow_mut().turn();
    let back_alone = || back.borrow_mut().as_mut().map_or(Ok(0.0), Large::turn);
    let longer = || Ok(handle_alone()?.max(copy_alone()?).max(back_alone()?));
    let mut subjects = vec![
        Subject { name: "ringmem Streamer", turn: Box::new(ours) },
        Subject { name: "the longer alone", turn: Box::new(longer) },
        Subject { name: if is_back { "alone: reading, writing" } else { "alone: reading" }, turn: Box::new(handle_alone) },
        Subject { name: "alone: copying", turn: Box::new(copy_alone) },
    ];
    if is_back {
        subjects.push(Subject { name: "alone: copying back", turn: Box::new(back_alone) });
    }
    rig.measure(Workload { name, unit: "ns", aim: 1.03, subjects })
}

/// Unlinked before it is filled: an interrupted run leaves nothing behind.
fn written(path: &Path, bytes: usize) -> Result<FileSource, Failure> {
    let cannot = |action: &'static str| move |error| format!("cannot {action} {}: {error}", path.display());
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(cannot("create"))?;
    let opened = file.set_len(bytes as u64).and_then(|()| FileSource::open(path));
    remove_file(path).map_err(cannot("remove"))?;
    fill(&file, bytes).map_err(cannot("write"))?;
    Ok(opened?)
}

fn fill(mut file: &File, bytes: usize) -> std::io::Result<()> {
    let piece = vec![7; bytes.min(1 << 20)];
    let mut left = bytes;
    while left > 0 {
        let piece = &piece[..left.min(piece.len())];
        file.write_all(piece)?;
        left -= piece.len();
    }
    Ok(())
}

fn read(file: &mut FileSource, buffer: &mut [u8], path: &Path, mut sink: Option<&mut Vec<u8>>) -> Result<(), Failure> {
    let mut at = 0;
    while at < file.len() {
        let length = (file.len() - at).min(buffer.len() as u64) as usize;
        file.read_exact(&mut buffer[..length], at).map_err(|cause| failed(path, &cause))?;
        if let Some(sink) = &mut sink {
            sink.write_at(&buffer[..length], at)?;
        }
        at += length as u64;
    }
    Ok(())
}

fn failed(path: &Path, cause: &Cause) -> Failure {
    let source = cause.source().map_or_else(String::new, |source| format!(": {source}"));
    format!("{}: {cause}{source}", path.display()).into()
}
