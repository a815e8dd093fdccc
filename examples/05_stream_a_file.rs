//! Streams a file four times larger than the device's memory through a persistent kernel that changes each chunk.
//!
//! `cargo run --release --features std --example 05_stream_a_file`

use std::error::Error;
use std::ops::ControlFlow;

use ringmem::backend::host::HostBackend;
use ringmem::channel::Options;
use ringmem::stream::Module;
use ringmem::streaming::{Cause, Chunk, Dialogue, FileSink, FileSource, Job, Persistent, Progress, Streamer};
use ringmem_kernels::transform::{Applied, Apply, Operation};

struct Add(u8);

impl Dialogue for Add {
    type Question = Apply;
    type Answer = Applied;

    fn ask(&mut self, chunk: &Chunk) -> Apply {
        // The bytes are already in device memory.
        Apply { id: chunk.index, offset: chunk.place, length: chunk.length, operation: Operation::Add(self.0).word() }
    }

    fn number(answer: &Applied) -> u64 {
        answer.id
    }

    fn answered(&mut self, chunk: &Chunk, answer: Applied) -> Result<(), Cause> {
        if answer.status == 0 { Ok(()) } else { Err(chunk.refused()) }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let place = std::env::temp_dir().join(format!("ringmem-example-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let outcome = stream(&place);
    std::fs::remove_dir_all(&place)?;
    outcome
}

fn stream(place: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let (from, to) = (place.join("from"), place.join("to"));
    let bytes: Vec<u8> = (0..4 << 20).map(|i: u32| (i / 7) as u8).collect();
    std::fs::write(&from, &bytes)?;

    let backend = HostBackend::builder().device_memory(1 << 20).build()?;
    let mut streamer = Streamer::builder(&backend, 0).chunk(256 << 10).depth(3).build()?;

    let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
    let arguments = [streamer.address(), streamer.size()];
    let mut options = Options::new("transform");
    options.arguments = &arguments;
    // SAFETY: the arguments are the streamer's memory. `transform` accesses only announced, unanswered chunks.
    let mut kernel = unsafe { Persistent::open(&streamer, &module, &options, Add(7))? };

    // Stops after five chunks, as an error would, and resumes there.
    let (mut source, mut sink) = (FileSource::open(&from)?, FileSink::create(&to)?);
    let mut fifth = |progress: Progress| if progress.chunks == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let stopped = match streamer.run(Job::new(&mut source).to(&mut sink).on_progress(&mut fifth), &mut kernel) {
        Ok(_) => return Err("nobody stopped it".into()),
        Err(stopped) => stopped,
    };
    println!("stopped: {} KiB are done, because it {}", stopped.done >> 10, stopped.cause);
    drop(kernel); // it may still hold chunks that are no longer needed

    let mut streamer = Streamer::builder(&backend, 0).chunk(64 << 10).depth(3).build()?;
    let arguments = [streamer.address(), streamer.size()];
    options.arguments = &arguments;
    // SAFETY: the arguments are the new streamer's memory. `transform` accesses only announced, unanswered chunks.
    let mut kernel = unsafe { Persistent::open(&streamer, &module, &options, Add(7))? };
    let streamed = streamer.run(Job::new(&mut source).from(stopped.done).to(&mut sink).checksums(), &mut kernel)?;
    kernel.close()?;
    println!("then {} KiB in {} chunks, at most {} under way", streamed.bytes >> 10, streamed.chunks, streamed.max_in_flight);

    // `commit` gives the complete file its name.
    assert!(!to.exists());
    sink.commit()?;
    let written = std::fs::read(&to)?;
    assert!(written.iter().zip(&bytes).all(|(after, before)| *after == before.wrapping_add(7)));
    println!("written: {} KiB, each byte 7 more", written.len() >> 10);
    Ok(())
}
