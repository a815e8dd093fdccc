use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crc32c::crc32c_append;
use ringmem::Image;
use ringmem::backend::Backend;
use ringmem::stream::Module;
use ringmem::streaming::{Cause, Chunk, Dialogue, FileSink, Interrupted, Job, Persistent, Source, Streamed, Through};
use ringmem_kernels::transform::{Applied, Apply, Operation};
use serde_json::json;

use super::input::{Input, Reference};
use super::report::{Progress, max_resident_bytes, rate};
use super::{Arguments, Shape};
use crate::output::Partial;
use crate::selection::Selected;
use crate::{Failure, Outcome, counted, failed, json_line, nanoseconds, shown, size};

struct Transform(Operation);

impl Dialogue for Transform {
    type Question = Apply;
    type Answer = Applied;

    fn ask(&mut self, chunk: &Chunk) -> Apply {
        Apply { id: chunk.index, offset: chunk.place, length: chunk.length, operation: self.0.word() }
    }

    fn number(answer: &Applied) -> u64 {
        answer.id
    }

    fn answered(&mut self, chunk: &Chunk, answer: Applied) -> Result<(), Cause> {
        if answer.status == 0 { Ok(()) } else { Err(chunk.refused()) }
    }
}

pub(super) fn run(arguments: &Arguments, to: &Path, image: &Image, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    let mut source = Input::open(&arguments.file, HostChecksum { operation: arguments.transform, sum: 0, bytes: 0 })?;
    if source.is_at(to).map_err(Failure::fact)? {
        return Err(Failure::Usage(format!("--out {} is {} itself", to.display(), arguments.file.display())));
    }
    let shape = arguments.shape(source.length())?;
    let selected = arguments.select(err)?;
    let (mut sink, _partial) = Partial::create(to).map_err(Failure::fact)?;
    let begun = Instant::now();
    let mut progress = Progress::new(source.length(), arguments);
    let streamed = stream(arguments, &shape, &selected.backend, image, &mut source, &mut sink, &mut progress, out)?;
    let streamed = match streamed {
        Ok(streamed) => streamed,
        Err(Interrupted { cause: cause @ Cause::Write { .. }, .. }) => return Err(failed(to, cause)),
        Err(Interrupted { cause, .. }) => return Err(source.failed(cause)),
    };
    let elapsed = begun.elapsed();
    source.compare()?;
    let HostChecksum { sum: expected, bytes: length, .. } = source.reference;
    progress.finish();
    let written = streamed.written.unwrap_or_default();
    if (written, streamed.bytes) != (expected, length) {
        return Err(Failure::Fact(format!(
            "the result is wrong: {} bytes with checksum {written:08x}, the host computed {} with {expected:08x}; {} is unchanged",
            streamed.bytes,
            length,
            to.display()
        )));
    }
    sink.commit().map_err(Failure::fact)?;
    print(arguments, to, &shape, &selected, &streamed, elapsed, out)?;
    Ok(())
}

type Came = Result<Streamed, Interrupted>;

#[expect(clippy::too_many_arguments, reason = "each is another thing")]
fn stream(
    arguments: &Arguments,
    shape: &Shape,
    backend: &Arc<dyn Backend>,
    image: &Image,
    source: &mut Input<HostChecksum>,
    sink: &mut FileSink,
    progress: &mut Progress,
    out: &mut dyn Write,
) -> Result<Came, Failure> {
    let mut streamer = shape.streamer(backend, shape.slots)?;
    let job = Job::new(source).to(sink).checksums();
    let Some(operation) = arguments.transform else {
        return Ok(progress.watch(&mut streamer, job, &mut Through, out)?);
    };
    let module = Module::load(backend, image, &ringmem_kernels::ABI)?;
    let places = [streamer.address(), streamer.size()];
    let options = arguments.channel("transform", &places);
    // SAFETY: the arguments are the streamer's memory; the kernel accesses only announced chunks.
    let mut stage = unsafe { Persistent::open(&streamer, &module, &options, Transform(operation))? };
    let came = progress.watch(&mut streamer, job, &mut stage, out)?;
    if came.is_ok() {
        stage.close().map_err(|cause| failed(&arguments.file, cause))?;
    }
    Ok(came)
}

struct HostChecksum {
    operation: Option<Operation>,
    sum: u32,
    bytes: u64,
}

impl Reference for HostChecksum {
    fn see(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let Some(operation) = self.operation else {
            self.sum = crc32c_append(self.sum, bytes);
            return;
        };
        let mut part = [0; 4096];
        for bytes in bytes.chunks(part.len()) {
            let part = &mut part[..bytes.len()];
            part.copy_from_slice(bytes);
            part.iter_mut().for_each(|byte| *byte = operation.apply(*byte));
            self.sum = crc32c_append(self.sum, part);
        }
    }
}

fn print(
    arguments: &Arguments,
    to: &Path,
    shape: &Shape,
    selected: &Selected,
    streamed: &Streamed,
    elapsed: Duration,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (bytes, throughput) = (streamed.bytes, rate(streamed.bytes, elapsed));
    let transform = arguments.transform.map(|operation| match operation {
        Operation::Add(operand) => format!("add:{operand}"),
        Operation::Xor(operand) => format!("xor:{operand}"),
    });
    let checksum = streamed.written.unwrap_or_default();
    if arguments.json {
        let object = json!({
            "bytes": bytes,
            "chunks": streamed.chunks,
            "out": to.display().to_string(),
            "transform": transform,
            "checksum": format!("{checksum:08x}"),
            "elapsed_ns": nanoseconds(elapsed),
            "throughput_bytes_per_s": throughput,
            "max_resident_bytes": max_resident_bytes(),
            "backend": selected.backend.name(),
            "why": selected.why,
            "verified": true,
        });
        return writeln!(out, "{}", json_line(&object));
    }
    let (length, chunks) = (size::show(bytes), counted(streamed.chunks, "chunk"));
    writeln!(out, "{} to {}: {length} in {chunks} of {}", shown(&arguments.file), shown(to), size::show(shape.chunk))?;
    writeln!(out, "  transform   {}", transform.as_deref().unwrap_or("none: the bytes as they are"))?;
    writeln!(out, "  checksum    {checksum:08x}, verified")?;
    writeln!(out, "  time        {:.3} ms", elapsed.as_secs_f64() * 1e3)?;
    writeln!(out, "  throughput  {}/s", size::show(throughput as u64))?;
    writeln!(out, "  backend     {}", selected.words())
}
