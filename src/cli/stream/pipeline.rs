//! File, staging, device memory, kernel and back: three things at once, in order.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem_kernels::histogram::{Chunk, Counted, Work};

use super::report::Progress;
use super::{Answer, Shape};
use crate::backend::DeviceAddress;
use crate::backend::host::HostBackend;
use crate::channel::{Channel, Closed, Options};
use crate::cli::source::Source;
use crate::cli::{Backoff, Failure};
use crate::memory::{Arena, Buffer, Device, Pinned, PinnedBuffer};
use crate::ring::spsc::{PopError, PushError};
use crate::stream::{Module, Pending, Stream};
use crate::{Image, Rejected, Result};

/// How long nothing may move.
const STALL: Duration = Duration::from_secs(30);

/// What came out of the run.
pub(super) struct Run {
    pub(super) answer: Answer,
    /// Counted by the kernel.
    pub(super) bytes: u64,
    pub(super) chunks: u64,
    pub(super) elapsed: Duration,
    /// From message to answer, nanoseconds, sorted.
    pub(super) round_trips: Vec<u64>,
    /// The most messages seen in each ring.
    pub(super) high_water: [u64; 2],
    pub(super) closed: Closed,
    /// Staging buffers, and those of them that are page-locked.
    pub(super) pinned: (usize, usize),
}

/// A pinned buffer that the file is read into.
type Staging = PinnedBuffer<u8, HostBackend>;

/// A chunk's place on the device.
type Slot = Buffer<u8, Arena<Device<HostBackend>>>;

struct Pipeline<'a> {
    source: &'a Source,
    shape: &'a Shape,
    channel: Channel<Chunk, Counted>,
    copies: Stream,
    /// Staging buffers that nobody uses.
    idle: Vec<Staging>,
    /// Slots of device memory that nobody uses, each with its offset in the kernel's data.
    free: Vec<(u64, Slot)>,
    /// Being copied, in order.
    copying: VecDeque<(Pending<(Staging, Slot)>, Chunk)>,
    /// Copied, and not yet in the ring.
    ready: VecDeque<(Chunk, Slot)>,
    /// With the kernel, in order.
    counting: VecDeque<(Chunk, Slot, Instant)>,
    /// Chunks read so far.
    read: u64,
    last: Option<Counted>,
    round_trips: Vec<u64>,
    high_water: [u64; 2],
}

pub(super) fn run(
    source: &Source,
    shape: &Shape,
    ring_capacity: u64,
    backend: &Arc<HostBackend>,
    image: &Image,
    progress: &mut Progress,
    out: &mut dyn Write,
) -> Result<Run, Failure> {
    let module = Module::load(backend, image, &ringmem_kernels::ABI)?;
    let copies = Stream::new(backend, 0)?;
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let data_bytes = shape.slots * shape.chunk;
    let arena = Arena::new(Device::new(backend, 0), size(data_bytes.saturating_add(size_of::<Work>() as u64)), 128)?;
    let data = arena.device_address().map_or(0, DeviceAddress::get);
    let free = (0..shape.slots)
        .map(|_| {
            let slot = Slot::new(arena.clone(), size(shape.chunk))?;
            Ok((slot.device_address().map_or(0, DeviceAddress::get) - data, slot))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut work = Buffer::<Work, _>::new(arena.clone(), 1)?;
    work.zero()?;
    let idle = (0..shape.staging).map(|_| Staging::new(Pinned::new(backend, 0), size(shape.chunk))).collect::<Result<Vec<_>>>()?;
    let pinned = (idle.len(), idle.iter().filter(|buffer| buffer.is_pinned()).count());
    let arguments = [data, data_bytes, work.device_address().map_or(0, DeviceAddress::get)];
    let mut options = Options::new("histogram");
    options.arguments = &arguments;
    options.input_capacity = ring_capacity;
    options.output_capacity = ring_capacity;
    // SAFETY: the channel keeps the arena, which has all that the arguments name; chunks are written only while the kernel does not have them.
    let mut channel = unsafe { Channel::open(backend, 0, &module, &options)? };
    channel.keep(arena.clone());
    let mut pipeline = Pipeline {
        source,
        shape,
        channel,
        copies,
        idle,
        free,
        copying: VecDeque::new(),
        ready: VecDeque::new(),
        counting: VecDeque::new(),
        read: 0,
        last: None,
        round_trips: Vec::new(),
        high_water: [0; 2],
    };
    let begun = Instant::now();
    let chunks = source.length().div_ceil(shape.chunk);
    pipeline.pump(chunks, progress, out)?;
    pipeline.channel.drain()?;
    // Nothing is to come any more: an answer now is one too many.
    pipeline.collect()?;
    let Pipeline { channel, last, mut round_trips, high_water, .. } = pipeline;
    let closed = channel.close()?;
    let totals = work.to_vec()?;
    let elapsed = begun.elapsed();
    round_trips.sort_unstable();
    Ok(Run {
        answer: Answer { histogram: totals.first().map_or([0; 256], |work| work.totals), checksum: last.map_or(0, |last| last.checksum) },
        bytes: last.map_or(0, |last| last.bytes),
        chunks,
        elapsed,
        round_trips,
        high_water,
        closed,
        pinned,
    })
}

impl Pipeline<'_> {
    /// Moves everything until every chunk is answered.
    fn pump(&mut self, chunks: u64, progress: &mut Progress, out: &mut dyn Write) -> Result<(), Failure> {
        let mut backoff = Backoff::default();
        let mut moved = Instant::now();
        let mut answered = 0;
        while answered < chunks {
            let mut steps = u64::from(self.load(chunks)?);
            steps += self.hand_over()?;
            let answers = self.collect()?;
            answered += answers;
            if steps + answers > 0 {
                backoff.reset();
                moved = Instant::now();
                progress.show((answered * self.shape.chunk).min(self.source.length()), out)?;
            } else {
                self.channel.check()?;
                if moved.elapsed() > STALL {
                    let (read, copying, counting) = (self.read, self.copying.len(), self.counting.len());
                    return Err(Failure::Fact(format!(
                        "nothing moved for {} s: {read} of {chunks} chunks read, {copying} being copied, {counting} with the kernel, {answered} answered",
                        STALL.as_secs()
                    )));
                }
                backoff.wait();
            }
        }
        Ok(())
    }

    /// Reads the next chunk into a staging buffer and queues its copy; whether there was one to read and room for it.
    fn load(&mut self, chunks: u64) -> Result<bool, Failure> {
        if self.read == chunks || self.idle.is_empty() || self.free.is_empty() {
            return Ok(false);
        }
        let (Some(mut staging), Some((offset, slot))) = (self.idle.pop(), self.free.pop()) else { return Ok(false) };
        let begin = self.read * self.shape.chunk;
        let length = self.shape.chunk.min(self.source.length() - begin);
        self.source.read(&mut staging.as_mut_slice()?[..length as usize], begin)?;
        let chunk = Chunk { id: self.read, offset, length, first_word: begin / 8 };
        let copy = self.copies.copy_range(staging, ..length as usize, slot, 0).map_err(Rejected::into_error)?;
        self.copying.push_back((copy, chunk));
        self.read += 1;
        Ok(true)
    }

    /// Tells the kernel of the chunks whose copy is complete; how many steps that were.
    fn hand_over(&mut self) -> Result<u64, Failure> {
        let mut steps = 0;
        while self.copying.front().is_some_and(|(copy, _)| copy.is_done()) {
            let Some((copy, chunk)) = self.copying.pop_front() else { break };
            let (staging, slot) = copy.wait().map_err(Rejected::into_error)?;
            self.idle.push(staging);
            self.ready.push_back((chunk, slot));
            steps += 1;
        }
        while let Some((chunk, slot)) = self.ready.pop_front() {
            match self.channel.send(chunk) {
                Ok(()) => {
                    self.counting.push_back((chunk, slot, Instant::now()));
                    steps += 1;
                }
                Err(PushError::Full(chunk)) => {
                    self.ready.push_front((chunk, slot));
                    break;
                }
                Err(error @ PushError::Corrupt(_)) => return Err(Failure::Fact(format!("input {error}"))),
            }
            self.high_water[0] = self.high_water[0].max(self.channel.input_waiting().unwrap_or(0));
        }
        Ok(steps)
    }

    /// Takes answers; how many. They come in the order of the chunks, so any other is a fault.
    fn collect(&mut self) -> Result<u64, Failure> {
        let mut answers = 0;
        self.high_water[1] = self.high_water[1].max(self.channel.output_waiting().unwrap_or(0));
        loop {
            let counted = match self.channel.receive() {
                Ok(counted) => counted,
                Err(PopError::Empty) => return Ok(answers),
                Err(PopError::Corrupt(corrupt)) => return Err(Failure::Fact(format!("output {corrupt}"))),
            };
            let Some((chunk, slot, sent)) = self.counting.pop_front() else {
                return Err(Failure::Fact(format!("an answer for chunk {} that nobody waits for", counted.id)));
            };
            if counted.id != chunk.id {
                let what = if counted.id < chunk.id { "came twice" } else { "came too early" };
                return Err(Failure::Fact(format!("the answer for chunk {} {what}: chunk {}'s was next", counted.id, chunk.id)));
            }
            if counted.status != 0 {
                return Err(Failure::Fact(format!(
                    "the kernel refused chunk {}: {} bytes at offset {} of {}",
                    chunk.id,
                    chunk.length,
                    chunk.offset,
                    self.shape.slots * self.shape.chunk
                )));
            }
            self.round_trips.push(u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX));
            self.free.push((chunk.offset, slot));
            self.last = Some(counted);
            answers += 1;
        }
    }
}
