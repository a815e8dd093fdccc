use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::Image;
use ringmem::backend::{Backend, DeviceAddress};
use ringmem::memory::{Arena, Buffer, Device};
use ringmem::stream::Module;
use ringmem::streaming::{Cause, Chunk, Dialogue, Job, Persistent};
use ringmem_kernels::histogram::{self, Counted, Work};

use super::input::Input;
use super::report::{Progress, Run};
use super::{Answer, Arguments, HostCount, Shape};
use crate::{Failure, nanoseconds};

struct Count {
    asked: VecDeque<Instant>,
    last: Option<Counted>,
    round_trips: Vec<u64>,
}

impl Dialogue for Count {
    type Question = histogram::Chunk;
    type Answer = Counted;

    fn ask(&mut self, chunk: &Chunk) -> histogram::Chunk {
        self.asked.push_back(Instant::now());
        histogram::Chunk { id: chunk.index, offset: chunk.place, length: chunk.length, first_word: chunk.offset / 8 }
    }

    fn number(answer: &Counted) -> u64 {
        answer.id
    }

    fn answered(&mut self, chunk: &Chunk, counted: Counted) -> Result<(), Cause> {
        if counted.status != 0 {
            return Err(chunk.refused());
        }
        let took = self.asked.pop_front().map_or(Duration::ZERO, |asked| asked.elapsed());
        self.round_trips.push(nanoseconds(took));
        self.last = Some(counted);
        Ok(())
    }
}

pub(super) fn run(
    source: &mut Input<HostCount>,
    arguments: &Arguments,
    shape: &Shape,
    backend: &Arc<dyn Backend>,
    image: &Image,
    progress: &mut Progress,
    out: &mut dyn Write,
) -> Result<Run, Failure> {
    let module = Module::load(backend, image, &ringmem_kernels::ABI)?;
    let mut streamer = shape.streamer(backend, shape.staging)?;
    let arena = Arena::new(Device::new(backend, 0), size_of::<Work>(), align_of::<Work>())?;
    let mut work = Buffer::<Work, _>::new(arena.clone(), 1)?;
    work.zero()?;
    let places = [streamer.address(), streamer.size(), arena.device_address().map_or(0, DeviceAddress::get)];
    let options = arguments.channel("histogram", &places);
    let count = Count { asked: VecDeque::new(), last: None, round_trips: Vec::new() };
    // SAFETY: the arguments are the kept work and the streamer's memory; the kernel only reads announced chunks.
    let mut stage = unsafe { Persistent::open(&streamer, &module, &options, count)? };
    stage.keep_alive(arena);
    let begun = Instant::now();
    let streamed = progress.watch(&mut streamer, Job::new(source), &mut stage, out)?;
    let failed = |cause| source.failed(cause);
    let streamed = streamed.map_err(|stopped| failed(stopped.cause))?;
    let high_water = stage.high_water();
    let (closed, Count { last, mut round_trips, .. }) = stage.close().map_err(failed)?;
    let totals = work.to_vec()?;
    let elapsed = begun.elapsed();
    round_trips.sort_unstable();
    Ok(Run {
        answer: Answer { histogram: totals.first().map_or([0; 256], |work| work.totals), checksum: last.map_or(0, |last| last.checksum) },
        bytes: last.map_or(0, |last| last.bytes),
        chunks: streamed.chunks,
        elapsed,
        round_trips,
        high_water,
        closed,
        pinned: streamer.pinned(),
    })
}
