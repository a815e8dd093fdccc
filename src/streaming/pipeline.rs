//! [`Run`]: a running job and its chunks in flight.
//!
//! A chunk needs a *slot* in device memory and a *staging buffer* in pinned memory. Both come from the streamer, and go back to it when the chunk is done:
//! the number of slots bounds the device memory, and with the staging buffers the chunks in flight.
//!
//! | state | the chunk's staging buffer | its slot | ends when |
//! |---|---|---|---|
//! | `Uploading` | read by the upload | written by the upload | the upload is complete |
//! | `Arrived` | free to reuse, if nothing is downloaded | valid | the kernel has room for a request |
//! | `Requested` | as before | the kernel's | the kernel has answered |
//! | `Leaving` | written by the download, if there is a sink | read by the download | all queued operations are complete |
//!
//! Work comes in two forms. *Queued* work is an operation on a stream: upload, work and download are queued at once, ordered by events, so a chunk goes from
//! `Uploading` to `Leaving` in one step, and its buffer and slot may be in use by any of the three. The host reads ahead while it has buffers, then waits for
//! the oldest chunk, without a limit, since `patience` is for requested work; nothing is polled. *Requested* work goes to a persistent kernel by messages: the
//! host polls uploads, answers and downloads, with a back-off.
//!
//! INVARIANT: `flights` is in order of `chunk.index`. Requests are made, answers taken and chunks written to the sink in that order, so from front to back
//! the states never grow: the front chunk has the latest state, the back chunk the earliest. `advance` stops at the first chunk that cannot go on. `done` is
//! the end of the last chunk that is done: with a sink, written.
//!
//! A failure ends the run with [`Interrupted`], whose `done` tells where another run can continue. [`Drop`] then waits for queued work and returns all slots
//! and buffers in `flights` to the streamer, except for slots that a kernel may still write: those are lost to the streamer until it is dropped. A buffer or
//! slot that the failing call held is freed; the next run allocates it again.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crc32c::crc32c_append;

use super::source::fill;
use super::stage::sealed::Work;
use super::streamer::{Slot, Staging};
use super::{Cause, Chunk, Interrupted, Job, Progress, Stage, Streamed, Streamer};
use crate::backend::Ticket;
use crate::stream::Pending;
use crate::{Error, Rejected};

impl Streamer {
    /// Runs a job to its last chunk; can be repeated, even after an error. While a persistent kernel may still use chunks, a run with that kernel fails with
    /// [`Busy`](Error::Busy), and so does every run without a slot left; other stages run with the slots that are left.
    ///
    /// # Errors
    ///
    /// The cause, and how much is done. The operations on the streamer's streams, and those that the stage has returned, are complete, unless the driver does
    /// not answer.
    pub fn run<S: Stage>(&mut self, job: Job<'_>, stage: &mut S) -> Result<Streamed, Interrupted> {
        let done = job.begin;
        let mut work = stage.work();
        let ready = if let Work::Requested(kernel) = &mut work { kernel.begin(self.address()) } else { Ok(()) };
        let ready = ready.and_then(|()| self.fill_up().map_err(Cause::Device));
        ready.map_err(|cause| Interrupted { done, cause })?;
        Run::new(self, job, work).finish()
    }
}

/// A chunk in flight. Its staging buffer and its slot are absent while an operation that consumes them is being queued, and without a sink, the buffer of
/// requested work is from its arrival on.
struct Flight {
    chunk: Chunk,
    staging: Option<Staging>,
    slot: Option<Slot>,
    state: State,
    upload: Option<Ticket>,
    work: Option<Pending<()>>,
    download: Option<Ticket>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Uploading,
    Arrived,
    Requested,
    Leaving,
}

/// Spins, then yields, then sleeps.
#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    fn reset(&mut self) {
        self.0 = 0;
    }

    fn wait(&mut self) {
        match self.0 {
            0..64 => std::hint::spin_loop(),
            64..256 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
        self.0 = self.0.saturating_add(1);
    }
}

pub(super) struct Run<'r, 'j> {
    streamer: &'r mut Streamer,
    work: Work<'r>,
    job: Job<'j>,
    flights: VecDeque<Flight>,
    /// Offset of the next chunk to read.
    next: u64,
    /// End of the range; `None` until a source of unknown length ends.
    end: Option<u64>,
    /// Number of chunks read.
    read: u64,
    /// End of the last chunk that is done.
    done: u64,
    /// Number of chunks done.
    chunks: u64,
    max_in_flight: usize,
    /// Checksums of the bytes read and written.
    sums: [u32; 2],
    /// The streams are idle and their errors reported, so that the drop needs no wait.
    is_through: bool,
}

impl<'r, 'j> Run<'r, 'j> {
    pub(super) fn new(streamer: &'r mut Streamer, job: Job<'j>, work: Work<'r>) -> Self {
        let (begin, end) = (job.begin, job.end.or_else(|| job.source.length()));
        Self {
            streamer,
            work,
            job,
            flights: VecDeque::new(),
            next: begin,
            end,
            read: 0,
            done: begin,
            chunks: 0,
            max_in_flight: 0,
            sums: [0; 2],
            is_through: false,
        }
    }

    pub(super) fn finish(mut self) -> Result<Streamed, Interrupted> {
        let streamed = self.pump();
        streamed.map_err(|cause| Interrupted { done: self.done, cause })
    }

    fn pump(&mut self) -> Result<Streamed, Cause> {
        self.check_range()?;
        let mut backoff = Backoff::default();
        let mut moved_at = Instant::now();
        while !self.is_over() {
            let mut moved = self.load()?;
            if matches!(self.work, Work::Requested(_)) {
                moved |= self.advance()?;
            } else if !moved && !self.flights.is_empty() {
                self.wait_for_oldest()?;
                moved = true;
            }
            if moved {
                backoff.reset();
                moved_at = Instant::now();
            } else if !self.is_over() {
                if let Work::Requested(kernel) = &mut self.work {
                    kernel.check()?;
                }
                if moved_at.elapsed() > self.streamer.patience {
                    return Err(self.stalled());
                }
                backoff.wait();
            }
        }
        // Also errors that no stage returned. `done` is the end of the range by now, although the results of any chunk may be wrong: a run from there repairs
        // nothing.
        for stream in [&self.streamer.upload, &self.streamer.work, &self.streamer.download] {
            stream.synchronize()?;
        }
        self.is_through = true;
        if self.job.end.is_none() {
            self.job.source.check()?;
        }
        let [read, written] = self.sums;
        if let Some(expected) = self.job.expected.filter(|expected| *expected != read) {
            return Err(Cause::Checksum { expected, got: read });
        }
        Ok(Streamed {
            bytes: self.done - self.job.begin,
            chunks: self.chunks,
            max_in_flight: self.max_in_flight,
            read: self.job.checksums.then_some(read),
            written: (self.job.checksums && self.job.sink.is_some()).then_some(written),
        })
    }

    fn check_range(&self) -> Result<(), Cause> {
        let Some(end) = self.end else { return Ok(()) };
        let begin = self.job.begin;
        if begin > end {
            return Err(Error::Size { what: "range end in bytes", asked: end, least: begin, most: u64::MAX }.into());
        }
        if let Some(size) = self.job.source.length().filter(|length| *length < end) {
            return Err(Error::Range { offset: begin, len: end - begin, size, element_bytes: 1 }.into());
        }
        self.check_elements(end - begin)
    }

    fn check_elements(&self, length: u64) -> Result<(), Cause> {
        let element = self.streamer.element();
        if length.is_multiple_of(element) { Ok(()) } else { Err(Cause::Ragged { length, element }) }
    }

    fn is_over(&self) -> bool {
        self.flights.is_empty() && self.end == Some(self.next)
    }

    /// Reads the next chunk and queues its upload. Returns false without a free slot or buffer, and at the end.
    fn load(&mut self) -> Result<bool, Cause> {
        if self.end == Some(self.next) || self.streamer.free.is_empty() {
            return Ok(false);
        }
        let Some(mut staging) = self.streamer.idle.pop_front() else { return Ok(false) };
        let wanted = self.streamer.length_of(self.end.unwrap_or(u64::MAX) - self.next);
        let bytes = &mut staging.as_view_mut().overwritten()?[..wanted];
        let length = fill(self.job.source, bytes, self.next)?;
        if length < wanted || wanted == 0 {
            let at = self.next + length as u64;
            if let Some(promised) = self.end {
                return Err(Cause::Truncated { at, promised });
            }
            self.check_elements(length as u64)?;
            self.end = Some(at);
        }
        if length == 0 {
            self.streamer.idle.push_front(staging);
            return Ok(false);
        }
        if self.job.checksums {
            self.sums[0] = crc32c_append(self.sums[0], &bytes[..length]);
        }
        self.launch(staging, length)?;
        Ok(true)
    }

    fn launch(&mut self, staging: Staging, length: usize) -> Result<(), Cause> {
        let Some(slot) = self.streamer.free.pop() else { return Ok(()) };
        let Some(address) = slot.device_address() else {
            return Err(Error::Unsupported { what: "device memory without an address" }.into());
        };
        let place = address.get() - self.streamer.address();
        let chunk = Chunk { index: self.read, offset: self.next, length: length as u64, address, place };
        let queued = match self.streamer.upload.copy_range(staging, ..length, slot, 0) {
            Ok(queued) => queued,
            Err(Rejected { error, value: (staging, slot) }) => {
                self.streamer.idle.push_front(staging);
                self.streamer.free.push(slot);
                return Err(error.into());
            }
        };
        let upload = queued.ticket();
        let (staging, slot) = queued.detach();
        self.next += length as u64;
        self.read += 1;
        self.flights.push_back(Flight {
            chunk,
            staging: Some(staging),
            slot: Some(slot),
            state: State::Uploading,
            upload,
            work: None,
            download: None,
        });
        self.max_in_flight = self.max_in_flight.max(self.flights.len());
        if matches!(self.work, Work::Requested(_)) { Ok(()) } else { self.queue_last() }
    }

    /// Queues the work on the newest chunk after its upload, then its download.
    fn queue_last(&mut self) -> Result<(), Cause> {
        let Some(flight) = self.flights.back_mut() else { return Ok(()) };
        let work = &self.streamer.work;
        if let Some(upload) = flight.upload {
            self.streamer.backend().stream_wait(upload, work.id())?;
        }
        if let Work::Queued(queue) = &mut self.work {
            flight.work = Some(queue(&flight.chunk, work)?);
        }
        // A stage may return an operation of another stream, which the download must wait for too.
        if let Some(other) = flight.work.as_ref().and_then(Pending::ticket).filter(|ticket| ticket.stream != work.id()) {
            self.streamer.backend().stream_wait(other, work.id())?;
        }
        if let Some(slot) = &mut flight.slot {
            slot.used_by(work)?;
        }
        let last = self.flights.len() - 1;
        self.download(last)
    }

    /// Queues the download, if there is a sink. It is ordered after all uses of the slot.
    fn download(&mut self, index: usize) -> Result<(), Cause> {
        let Some(flight) = self.flights.get_mut(index) else { return Ok(()) };
        flight.state = State::Leaving;
        if self.job.sink.is_none() {
            return Ok(());
        }
        let (Some(slot), Some(staging)) = (flight.slot.take(), flight.staging.take()) else { return Ok(()) };
        let length = flight.chunk.length as usize;
        let (outcome, (slot, staging)) = match self.streamer.download.copy_range(slot, ..length, staging, 0) {
            Ok(queued) => (Ok(queued.ticket()), queued.detach()),
            Err(Rejected { error, value }) => (Err(error), value),
        };
        (flight.slot, flight.staging) = (Some(slot), Some(staging));
        flight.download = outcome?;
        Ok(())
    }

    /// Waits for the operations of the oldest chunk of queued work.
    fn wait_for_oldest(&mut self) -> Result<(), Cause> {
        let Some(flight) = self.flights.front_mut() else { return Ok(()) };
        let backend = self.streamer.backend();
        // In order, so that the error returned is the first operation's own, not a consequence in a later one.
        if let Some(upload) = flight.upload.take() {
            backend.wait(upload, None)?;
        }
        if let Some(work) = flight.work.take() {
            work.wait().map_err(Rejected::into_error)?;
        }
        if let Some(download) = flight.download.take() {
            backend.wait(download, None)?;
        }
        self.finish_oldest()
    }

    /// Moves chunks of requested work on, oldest first; returns true if one has moved.
    fn advance(&mut self) -> Result<bool, Cause> {
        let mut moved = false;
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            if flight.state == State::Uploading {
                let backend = self.streamer.backend();
                if flight.upload.is_some_and(|upload| !backend.is_complete(upload)) {
                    break;
                }
                if let Some(upload) = flight.upload.take() {
                    backend.wait(upload, None)?;
                }
                if let Some(slot) = &mut flight.slot {
                    slot.settle()?;
                }
                if let Some(staging) = &mut flight.staging {
                    staging.settle()?;
                }
                if self.job.sink.is_none() {
                    self.streamer.idle.extend(flight.staging.take());
                }
                flight.state = State::Arrived;
                moved = true;
            }
            if let (State::Arrived, Work::Requested(kernel)) = (flight.state, &mut self.work) {
                if !kernel.request(&flight.chunk)? {
                    break;
                }
                flight.state = State::Requested;
                moved = true;
            }
        }
        Ok(self.accept_answers()? | self.finish_downloads()? | moved)
    }

    fn accept_answers(&mut self) -> Result<bool, Cause> {
        let mut moved = false;
        while let Some(index) = self.flights.iter().position(|flight| flight.state != State::Leaving) {
            let (flight, Work::Requested(kernel)) = (&self.flights[index], &mut self.work) else { break };
            if flight.state != State::Requested || !kernel.answered(&flight.chunk)? {
                break;
            }
            self.download(index)?;
            moved = true;
        }
        Ok(moved)
    }

    fn finish_downloads(&mut self) -> Result<bool, Cause> {
        let mut moved = false;
        while let Some(flight) = self.flights.front_mut().filter(|flight| flight.state == State::Leaving) {
            let backend = self.streamer.backend();
            if flight.download.is_some_and(|download| !backend.is_complete(download)) {
                break;
            }
            if let Some(download) = flight.download.take() {
                backend.wait(download, None)?;
            }
            self.finish_oldest()?;
            moved = true;
        }
        Ok(moved)
    }

    fn finish_oldest(&mut self) -> Result<(), Cause> {
        let Some(Flight { chunk, staging, slot, .. }) = self.flights.pop_front() else { return Ok(()) };
        if let Some(mut slot) = slot {
            slot.settle()?;
            self.streamer.free.push(slot);
        }
        if let Some(mut staging) = staging {
            staging.settle()?;
            self.write(&staging.as_slice()?[..chunk.length as usize], chunk.offset)?;
            self.streamer.idle.push_back(staging);
        }
        self.done = chunk.offset + chunk.length;
        self.chunks += 1;
        let progress = Progress { done: self.done, end: self.end, chunks: self.chunks };
        let told_to_stop = self.job.progress.as_mut().is_some_and(|callback| callback(progress).is_break());
        if told_to_stop { Err(Cause::Cancelled) } else { Ok(()) }
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> Result<(), Cause> {
        let Some(sink) = &mut self.job.sink else { return Ok(()) };
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = at + (bytes.len() - rest.len()) as u64;
            match sink.write_at(rest, written) {
                Ok(0) => return Err(Cause::Write { written, source: io::ErrorKind::WriteZero.into() }),
                Ok(count) => rest = &rest[count.min(rest.len())..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Cause::Write { written, source }),
            }
        }
        if self.job.checksums {
            self.sums[1] = crc32c_append(self.sums[1], bytes);
        }
        Ok(())
    }

    fn stalled(&self) -> Cause {
        let working = self.flights.iter().filter(|flight| flight.state == State::Requested).count() as u64;
        let copying = self.flights.len() as u64 - working;
        Cause::Stalled { waited: self.streamer.patience, read: self.read, copying, working, done: self.chunks }
    }
}

/// Waits for queued work after a failure. A slot that a kernel may still use is not reused.
impl Drop for Run<'_, '_> {
    fn drop(&mut self) {
        // An unreported error would fail the next job.
        if self.is_through {
            return;
        }
        let streamer = &mut *self.streamer;
        for work in self.flights.iter_mut().filter_map(|flight| flight.work.take()) {
            if let Err(rejected) = work.wait() {
                streamer.backend().unreported(rejected.error);
            }
        }
        for stream in [&streamer.upload, &streamer.work, &streamer.download] {
            if let Err(error) = stream.synchronize() {
                streamer.backend().unreported(error);
            }
        }
        for flight in self.flights.drain(..) {
            if let Some(mut staging) = flight.staging {
                let _ = staging.settle();
                streamer.idle.push_back(staging);
            }
            if let Some(mut slot) = flight.slot {
                let _ = slot.settle();
                // An answer that has arrived but was not taken does not count: its slot is lost too.
                let is_lost = matches!(&self.work, Work::Requested(kernel) if kernel.may_have(&flight.chunk));
                let to = if is_lost { &mut streamer.lost } else { &mut streamer.free };
                to.push(slot);
            }
        }
    }
}
