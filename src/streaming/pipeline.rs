//! [`Run`]: a running job and its chunks in flight. Queued work is not polled: the host reads ahead while it has buffers, then waits for the
//! oldest chunk. Work requested from a kernel is polled.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use crc32c::crc32c_append;

use super::backoff::Backoff;
use super::flight::{Flight, State};
use super::source::fill;
use super::stage::sealed::Work;
use super::streamer::Staging;
use super::{Cause, Chunk, Interrupted, Job, Progress, Streamed, Streamer};
use crate::stream::Pending;
use crate::{Error, Rejected};

pub(super) struct Run<'r, 'j> {
    streamer: &'r mut Streamer,
    work: Work<'r>,
    job: Job<'j>,
    flights: VecDeque<Flight>,
    next: u64,
    end: Option<u64>,
    read: u64,
    done: u64,
    chunks: u64,
    most_under_way: usize,
    sums: [u32; 2],
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
            most_under_way: 0,
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
        // Also errors that no stage returned.
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
            most_under_way: self.most_under_way,
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
        let (staging, slot) = queued.ordered();
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
        self.most_under_way = self.most_under_way.max(self.flights.len());
        if matches!(self.work, Work::Requested(_)) { Ok(()) } else { self.queue_last() }
    }

    fn queue_last(&mut self) -> Result<(), Cause> {
        let Some(flight) = self.flights.back_mut() else { return Ok(()) };
        let work = &self.streamer.work;
        if let Some(upload) = flight.upload {
            self.streamer.backend().after(upload, work.id())?;
        }
        if let Work::Queued(queue) = &mut self.work {
            flight.work = Some(queue(&flight.chunk, work)?);
        }
        // A stage may return another stream's operation.
        if let Some(other) = flight.work.as_ref().and_then(Pending::ticket).filter(|ticket| ticket.stream != work.id()) {
            self.streamer.backend().after(other, work.id())?;
        }
        if let Some(slot) = &mut flight.slot {
            slot.used_by(work)?;
        }
        let last = self.flights.len() - 1;
        self.send_back(last)
    }

    fn send_back(&mut self, index: usize) -> Result<(), Cause> {
        let Some(flight) = self.flights.get_mut(index) else { return Ok(()) };
        flight.state = State::Leaving;
        if self.job.sink.is_none() {
            return Ok(());
        }
        let (Some(slot), Some(staging)) = (flight.slot.take(), flight.staging.take()) else { return Ok(()) };
        let length = flight.chunk.length as usize;
        let (outcome, (slot, staging)) = match self.streamer.download.copy_range(slot, ..length, staging, 0) {
            Ok(queued) => (Ok(queued.ticket()), queued.ordered()),
            Err(Rejected { error, value }) => (Err(error), value),
        };
        (flight.slot, flight.staging) = (Some(slot), Some(staging));
        flight.download = outcome?;
        Ok(())
    }

    fn wait_for_oldest(&mut self) -> Result<(), Cause> {
        let Some(flight) = self.flights.front_mut() else { return Ok(()) };
        let backend = self.streamer.backend();
        // Each error is its operation's own.
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

    fn advance(&mut self) -> Result<bool, Cause> {
        let mut moved = false;
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            if flight.state == State::Uploading {
                let backend = self.streamer.backend();
                if flight.upload.is_some_and(|upload| !backend.reached(upload)) {
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
        Ok(self.take_answers()? | self.take_leave()? | moved)
    }

    fn take_answers(&mut self) -> Result<bool, Cause> {
        let mut moved = false;
        while let Some(index) = self.flights.iter().position(|flight| flight.state != State::Leaving) {
            let (flight, Work::Requested(kernel)) = (&self.flights[index], &mut self.work) else { break };
            if flight.state != State::Requested || !kernel.answered(&flight.chunk)? {
                break;
            }
            self.send_back(index)?;
            moved = true;
        }
        Ok(moved)
    }

    fn take_leave(&mut self) -> Result<bool, Cause> {
        let mut moved = false;
        while let Some(flight) = self.flights.front_mut().filter(|flight| flight.state == State::Leaving) {
            let backend = self.streamer.backend();
            if flight.download.is_some_and(|download| !backend.reached(download)) {
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

/// Memory that a kernel may use is not reused.
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
                let is_lost = matches!(&self.work, Work::Requested(kernel) if kernel.may_have(&flight.chunk));
                let to = if is_lost { &mut streamer.lost } else { &mut streamer.free };
                to.push(slot);
            }
        }
    }
}
