#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::fmt;
use core::ops::Range;
use core::time::Duration;
use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;

use super::Chunks;
use crate::backend::{Backend, Ticket, Uses, until_complete};
use crate::memory::{Both, Buffer, Memory, Reservation, same_len};
use crate::stream::{Source, Stream, Target};
use crate::{DeviceBytes, Error, Rejected, Result};

/// The largest depth.
pub const MOST_DEPTH: u32 = 8;

/// Progress of a copy, in bytes.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::copy::{Chunked, Progress};
/// use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 5000)?;
/// let device = GpuBuffer::<u8>::new(Device::new(&backend, 0), 5000)?;
/// let mut last = None;
/// Chunked::new(&Stream::new(&backend, 0)?, pinned, device, 4096, 2)?.wait_with(|progress| last = Some(progress))?;
/// assert_eq!(last, Some(Progress { done: 5000, bytes: 5000 }));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes arrived, from the beginning.
    pub done: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// A copy queued in chunks, a bounded number in flight; owns source and target until complete.
///
/// 1. Chunks are [whole elements](Chunks), copied in order.
/// 2. [`new`](Self::new) queues the first chunks; [`wait`](Self::wait) and [`poll`](Self::poll) the next ones.
/// 3. A failure ends the copy and returns both buffers with the first error. The target has every byte of the last
///    [progress](Self::progress).
/// 4. After a drop, queued chunks are executed, then both buffers freed; if forgotten, never.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
/// use ringmem::stream::Stream;
/// use ringmem::copy::Chunked;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let pinned = PinnedBuffer::<u32>::from_slice(Pinned::new(&backend, 0), &[7; 1000])?;
/// let device = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000)?;
///
/// let mut chunks = Vec::new();
/// let copy = Chunked::new(&stream, pinned, device, 1500, 2)?;
/// let (_pinned, device) = copy.wait_with(|progress| chunks.push(progress.done))?;
/// assert_eq!(chunks, [1500, 3000, 4000]);
/// assert_eq!(device.to_vec()?, [7; 1000]);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it drops the buffers of the copy, and leaves the rest of it undone"]
pub struct Chunked<A: Source, B: Target<Element = A::Element>> {
    from: A,
    to: B,
    path: ChunkPath<A::Element>,
    left: Chunks,
    depth: usize,
    flights: Flights,
    progress: Progress,
    /// A chunk failed: later ones are no progress.
    is_torn: bool,
    failed: Option<Error>,
}

/// Source and target, with the error.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::copy::{Chunked, Copied};
/// use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
/// use ringmem::stream::Stream;
///
/// fn upload(stream: &Stream, from: PinnedBuffer<u8>, to: GpuBuffer<u8>) -> Copied<PinnedBuffer<u8>, GpuBuffer<u8>> {
///     Chunked::new(stream, from, to, 4096, 2)?.wait() // an error has both buffers
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let pinned = PinnedBuffer::from_slice(Pinned::new(&backend, 0), &[7; 5000])?;
/// let device = GpuBuffer::new(Device::new(&backend, 0), 5000)?;
/// assert_eq!(upload(&Stream::new(&backend, 0)?, pinned, device)?.1.to_vec()?, [7; 5000]);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub type Copied<A, B> = Result<(A, B), Rejected<(A, B)>>;

pub(crate) struct Plan<T> {
    pub path: ChunkPath<T>,
    pub chunks: Chunks,
    pub depth: usize,
    pub place: Option<Reservation>,
}

struct Flights {
    queued: VecDeque<Flight>,
    /// Operations whose wait failed before they were complete.
    unanswered: Vec<Ticket>,
    place: Option<Reservation>,
    backend: Arc<dyn Backend>,
}

impl Drop for Flights {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let mut uses = Uses::NONE;
        let queued = self.queued.iter().flat_map(|flight| flight.tickets).flatten();
        for ticket in queued.chain(self.unanswered.drain(..)) {
            let _ = uses.add(ticket);
        }
        if !uses.is_empty() {
            self.backend.keep(Box::new(place), &uses, None);
        }
    }
}

struct Flight {
    tickets: [Option<Ticket>; 2],
    bytes: u64,
    is_whole: bool,
}

type Between<T> = Buffer<T, Arc<dyn Memory<Visibility = Both>>>;

pub(crate) enum ChunkPath<T> {
    Direct(Stream),
    /// Two copies through pinned memory, on two streams, ordered by the staging buffer's last use.
    Staged {
        out: Stream,
        into: Stream,
        // INVARIANT: as many as chunks may be queued, at least one where there is a chunk; `turn` is one of them.
        staging: Box<[Between<T>]>,
        turn: usize,
    },
}

impl<A: Source, B: Target<Element = A::Element>> Chunked<A, B> {
    /// Copies `from` to `to` in chunks of at most `chunk` bytes, at most `depth` in flight.
    ///
    /// # Errors
    ///
    /// Source and target: [`Size`](Error::Size) for different lengths or a chunk below an element, [`Unsupported`](Error::Unsupported) for a
    /// depth of 0 or above [`MOST_DEPTH`]; as [`Stream::copy`] for the first chunk.
    pub fn new(stream: &Stream, from: A, to: B, chunk: u64, depth: u32) -> Result<Self, Rejected<(A, B)>> {
        let planned = (|| {
            let (target, source) = (to.elements().len(), from.elements().len());
            same_len(target, source)?;
            let chunks = Chunks::new(source as u64, size_of::<A::Element>() as u64, chunk)?;
            Ok(Plan { path: ChunkPath::Direct(stream.clone()), chunks, depth: check_depth(depth)?, place: None })
        })();
        Self::planned(from, to, planned)
    }

    pub(crate) fn planned(from: A, to: B, planned: Result<Plan<A::Element>>) -> Result<Self, Rejected<(A, B)>> {
        match planned.and_then(|plan| from.may_queue().and_then(|()| to.may_queue()).map(|()| plan)) {
            Ok(plan) => Self::idle(from, to, plan).begun(),
            Err(error) => Err(Rejected { error, value: (from, to) }),
        }
    }

    pub(crate) fn idle(from: A, to: B, Plan { path, chunks, depth, place }: Plan<A::Element>) -> Self {
        let progress = Progress { done: 0, bytes: chunks.bytes() };
        let flights =
            Flights { queued: VecDeque::with_capacity(depth), unanswered: Vec::new(), place, backend: Arc::clone(path.stream().backend()) };
        Self { from, to, path, left: chunks, depth, flights, progress, is_torn: false, failed: None }
    }

    fn begun(mut self) -> Result<Self, Rejected<(A, B)>> {
        self.fill();
        match self.failed.take() {
            Some(error) if self.flights.queued.is_empty() => Err(Rejected { error, value: (self.from, self.to) }),
            failed => Ok(Self { failed, ..self }),
        }
    }

    /// Returns the last progress.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        self.progress
    }

    /// Queues the next chunks; returns true if the copy is complete. [`wait`](Self::wait) returns its error.
    pub fn poll(&mut self) -> bool {
        self.drive(Some(Duration::ZERO), |_| {})
    }

    /// Waits without a deadline.
    ///
    /// # Errors
    ///
    /// A chunk's first error, with both buffers.
    pub fn wait(self) -> Copied<A, B> {
        self.wait_with(|_| {})
    }

    /// As [`wait`](Self::wait); calls `progress` for each arrived chunk.
    pub fn wait_with(mut self, progress: impl FnMut(Progress)) -> Copied<A, B> {
        self.drive(None, progress);
        self.finish()
    }

    /// As [`wait`](Self::wait), with a timeout.
    ///
    /// # Errors
    ///
    /// `self` on timeout; inside, as [`wait`](Self::wait).
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<Copied<A, B>, Self> {
        if self.drive(Some(timeout), |_| {}) { Ok(self.finish()) } else { Err(self) }
    }

    pub(crate) fn drive(&mut self, timeout: Option<Duration>, mut progress: impl FnMut(Progress)) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.fill();
        while !self.flights.queued.is_empty() {
            let before = self.progress;
            if !self.land(deadline) {
                return false;
            }
            self.fill();
            if self.progress != before {
                progress(self.progress);
            }
        }
        true
    }

    pub(crate) fn failure(&mut self) -> Option<Error> {
        self.failed.take()
    }

    fn finish(self) -> Copied<A, B> {
        let value = (self.from, self.to);
        match self.failed {
            None => Ok(value),
            Some(error) => Err(Rejected { error, value }),
        }
    }

    fn fill(&mut self) {
        while self.failed.is_none() && self.flights.queued.len() < self.depth {
            let Some(range) = self.left.next() else { return };
            self.failed = self.queue(range).err();
        }
    }

    /// If only one of two copies could be queued, waits for it.
    fn queue(&mut self, range: Range<u64>) -> Result<()> {
        let element = size_of::<A::Element>() as u64;
        let [start, end] = [range.start, range.end].map(|byte| (byte / element) as usize);
        // Waited for even after a panic.
        let flight = self.flights.queued.push_back_mut(Flight { tickets: [None; 2], bytes: range.end - range.start, is_whole: false });
        let queued = self.path.queue(&mut self.from, &mut self.to, start..end, &mut flight.tickets);
        flight.is_whole = queued.is_ok();
        if !flight.is_whole && flight.tickets[0].is_none() {
            self.flights.queued.pop_back();
        }
        queued
    }

    fn land(&mut self, deadline: Option<Instant>) -> bool {
        let Some(flight) = self.flights.queued.front_mut() else { return true };
        let backend = self.path.stream().backend();
        for place in &mut flight.tickets {
            let Some(ticket) = *place else { continue };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match backend.outcome(ticket, left) {
                Ok(false) => return false,
                Ok(true) => {}
                Err(error) => {
                    flight.is_whole = false;
                    self.failed.get_or_insert(error);
                }
            }
            *place = None;
            // If the wait failed, the operation stays listed.
            if flight.is_whole || backend.is_complete(ticket) {
                self.from.settled(ticket);
                self.to.settled(ticket);
            } else {
                self.flights.unanswered.push(ticket);
            }
        }
        self.is_torn |= !flight.is_whole;
        if !self.is_torn {
            self.progress.done += flight.bytes;
        }
        self.flights.queued.pop_front();
        true
    }
}

impl<A: Source, B: Target<Element = A::Element>> fmt::Debug for Chunked<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { progress, depth, flights, failed, .. } = self;
        f.debug_struct("Chunked")
            .field("progress", progress)
            .field("depth", depth)
            .field("queued", &flights.queued.len())
            .field("failed", failed)
            .finish_non_exhaustive()
    }
}

impl<T: DeviceBytes> ChunkPath<T> {
    pub fn staged(out: &Stream, into: &Stream, memory: &Arc<dyn Memory<Visibility = Both>>, elements: usize, depth: usize) -> Result<Self> {
        let staging = (0..depth).map(|_| Buffer::new(Arc::clone(memory), elements)).collect::<Result<_>>()?;
        Ok(Self::Staged { out: out.clone(), into: into.clone(), staging, turn: 0 })
    }

    const fn stream(&self) -> &Stream {
        match self {
            Self::Direct(stream) | Self::Staged { out: stream, .. } => stream,
        }
    }

    fn queue<A: Source<Element = T>, B: Target<Element = T>>(
        &mut self,
        from: &mut A,
        to: &mut B,
        range: Range<usize>,
        tickets: &mut [Option<Ticket>; 2],
    ) -> Result<()> {
        let (at, len) = (range.start, range.len());
        match self {
            Self::Direct(stream) => tickets[0] = hop(stream, from, range, to, at)?,
            Self::Staged { out, into, staging, turn } => {
                let place = *turn;
                *turn = (place + 1) % staging.len();
                let between = &mut staging[place];
                tickets[0] = hop(out, from, range, between, 0)?;
                tickets[1] = hop(into, between, 0..len, to, at)?;
            }
        }
        Ok(())
    }
}

fn hop<A: Source, B: Target<Element = A::Element>>(
    stream: &Stream,
    from: &mut A,
    range: Range<usize>,
    to: &mut B,
    at: usize,
) -> Result<Option<Ticket>> {
    let last = [from.last(), to.last()];
    let target = to.elements().slice(at..at + range.len())?;
    let source = from.elements().slice(range)?;
    // SAFETY: the operation owns or borrows both buffers until complete: no one else writes the source or uses the target. Both list it.
    let ticket = unsafe { stream.queue_copy(source, target, last) }?;
    if let Some(ticket) = ticket {
        from.used(ticket);
        to.used(ticket);
        from.has_queued();
        to.has_queued();
    }
    Ok(ticket)
}

pub(crate) fn check_depth(depth: u32) -> Result<usize> {
    if (1..=MOST_DEPTH).contains(&depth) { Ok(depth as usize) } else { Err(Error::Unsupported { what: "a depth outside 1 to 8" }) }
}

/// Waits when dropped, for borrowed elements: nothing lists the operations any more, so also for those whose wait has failed.
pub(crate) struct Ended<A: Source, B: Target<Element = A::Element>>(pub Chunked<A, B>);

impl<A: Source, B: Target<Element = A::Element>> Drop for Ended<A, B> {
    fn drop(&mut self) {
        self.0.left.skip_all();
        self.0.drive(None, |_| {});
        let Flights { unanswered, backend, .. } = &self.0.flights;
        unanswered.iter().for_each(|&ticket| until_complete(&**backend, ticket));
    }
}
