//! [`Transport`]: copies slots and stores indices between a host ring and a device ring, in one of three ways.
//!
//! | kind | copies | the kernel's index | for |
//! |---|---|---|---|
//! | mapped | the calling thread, through host addresses | a load | `Sync`, if the host maps the device ring |
//! | blocking | the backend; each call returns when the copy is complete | a load, or a blocking copy | `Sync` otherwise |
//! | queued | on a stream of its own | a load, or a queued copy that a later poll completes | `Async`, `DmaPolling` |
//!
//! 1. A span of slots is at most two copies: before the wrap and after it.
//! 2. The index is stored after the copies: by a release store, by one blocking call for both, or by the order of the stream. A queued store is prevented by a
//!    failure from the operation `since` on; the store of a head, which frees slots, has none: the direction stores it only once its copies are complete.
//! 3. One queued poll is in flight at a time. Polls have numbers, so that a caller can wait for a poll that began after an event.
//! 4. Nothing is undone: after an error, copies may be in flight and the store may or may not have happened. The direction finds out
//!    ([`Transfer`](super::direction::Transfer)).

use core::ptr::NonNull;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::device_ring::IndexWord;
use super::metrics::Counts;
use super::strategy::TransferStrategy;
use crate::backend::{Address, Backend, Copy, MemoryLocation, Ticket};
use crate::memory::Pages;
use crate::stream::Stream;
use crate::{Error, HostWord, Result, Word};

/// Offsets of the staging words: a queued poll may be in flight while a blocking read uses the other word.
const QUEUED_POLL: u64 = 0;
const BLOCKING_READ: u64 = size_of::<u64>() as u64;

pub(super) struct Transport {
    backend: Arc<dyn Backend>,
    kind: Kind,
    pub counts: Arc<Counts>,
    /// Pinned words, to which queued polls copy the kernel's index, and blocking reads any index of the device ring.
    staging: Pages,
    /// Numbers of the last begun and the last completed poll.
    polls: [u64; 2],
}

enum Kind {
    Mapped(Mapped),
    Blocking,
    Queued(Queue),
}

/// A stream of the transport's own, which executes copies, stores and polls in the order of the calls.
pub(super) struct Queue {
    stream: Stream,
    counts: Arc<Counts>,
    pace: Option<Pace>,
    /// The poll in flight.
    polling: Option<Ticket>,
    /// The last operation, which the rings must outlive.
    last: Option<Ticket>,
}

/// Both rings through host addresses.
#[derive(Clone, Copy)]
pub(super) struct Mapped {
    // INVARIANT: the first slots of both rings, and the index words of the device ring's headers. The transport is used only while `Rings` has both.
    pub host_slots: NonNull<u8>,
    pub device_slots: NonNull<u8>,
    pub theirs: NonNull<HostWord>,
    pub ours: NonNull<HostWord>,
}

// SAFETY: memory of the rings, which the ends share by the rings' protocol.
unsafe impl Send for Mapped {}

/// A run of slots, perhaps across the wrap of its rings, which have equal layouts.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub start: u64,
    pub count: u64,
    pub capacity: u64,
    pub slot_size: u64,
}

impl Span {
    /// Returns start and length of the part before the wrap and of the part after it, without empty ones.
    fn parts(self) -> impl Iterator<Item = (u64, u64)> {
        let first = self.count.min(self.capacity - (self.start & (self.capacity - 1)));
        [(self.start, first), (self.start.wrapping_add(first), self.count - first)].into_iter().filter(|&(_, count)| count > 0)
    }

    pub const fn end(self) -> u64 {
        self.start.wrapping_add(self.count)
    }
}

/// The store of an index: its word, its value, and the first operation whose failure prevents it; `None` if none does.
#[derive(Clone, Copy)]
pub(super) struct IndexStore {
    pub word: Address,
    pub value: u64,
    pub since: Option<Ticket>,
}

impl Transport {
    /// `mapped` is used by a strategy without queued copies, if the host maps the device ring.
    pub fn new(
        backend: &Arc<dyn Backend>,
        device: u32,
        strategy: TransferStrategy,
        counts: Arc<Counts>,
        mapped: impl FnOnce() -> Result<Option<Mapped>>,
    ) -> Result<Self> {
        let staging = Pages::new(backend, device, MemoryLocation::Pinned, BLOCKING_READ + size_of::<u64>() as u64)?;
        let queued = |pace| {
            let stream = Stream::new(backend, device)?;
            Ok::<_, Error>(Kind::Queued(Queue { stream, counts: Arc::clone(&counts), pace, polling: None, last: None }))
        };
        let kind = match strategy {
            TransferStrategy::Sync => mapped()?.map_or(Kind::Blocking, Kind::Mapped),
            TransferStrategy::DmaPolling { poll_interval_us } => {
                queued(Some(Pace::new(Duration::from_micros(u64::from(poll_interval_us)))))?
            }
            // Shared rings are not moved: `Direction::open` creates no transport for them.
            TransferStrategy::Async | TransferStrategy::Unified | TransferStrategy::Flagged => queued(None)?,
        };
        Ok(Self { backend: Arc::clone(backend), kind, counts, staging, polls: [0; 2] })
    }

    pub const fn mapped(&self) -> Option<Mapped> {
        if let Kind::Mapped(mapped) = self.kind { Some(mapped) } else { None }
    }

    pub const fn is_queued(&self) -> bool {
        matches!(self.kind, Kind::Queued(_))
    }

    pub const fn queue(&mut self) -> Option<&mut Queue> {
        if let Kind::Queued(queue) = &mut self.kind { Some(queue) } else { None }
    }

    /// Resets the interval of polls, because either direction has moved messages: an answer or room may follow soon.
    pub const fn hurry(&mut self) {
        if let Kind::Queued(Queue { pace: Some(pace), .. }) = &mut self.kind {
            pace.hurry();
        }
    }

    /// Returns the last queued operation: the rings must outlive it.
    pub const fn last(&self) -> Option<Ticket> {
        if let Kind::Queued(queue) = &self.kind { queue.last } else { None }
    }

    /// Copies a span, then stores the index, by blocking calls of the backend.
    ///
    /// # Safety
    ///
    /// The slots are live, and until this returns no one writes the source or uses the target. The word is of a live header, and only this transport writes
    /// it.
    pub unsafe fn send(
        &self,
        span: Span,
        from: impl Fn(u64) -> Result<Address>,
        to: impl Fn(u64) -> Result<Address>,
        IndexStore { word, value, .. }: IndexStore,
    ) -> Result<()> {
        let copy = |(index, count)| Ok::<_, Error>(Copy { to: to(index)?, from: from(index)?, bytes: count * span.slot_size });
        let mut parts = span.parts().map(copy);
        let (first, second) = (parts.next().transpose()?, parts.next().transpose()?);
        match (first, second) {
            // SAFETY: the caller promises live slots and a live word, which no one else uses until this call returns.
            (Some(first), Some(second)) => unsafe { self.backend.copy_and_publish_now(&[first, second], word, value) },
            // SAFETY: the caller promises live slots and a live word, which no one else uses until this call returns.
            (Some(first), None) => unsafe { self.backend.copy_and_publish_now(&[first], word, value) },
            // SAFETY: the caller promises a live word, which no one else writes; there are no slots to copy.
            (None, _) => unsafe { self.backend.publish_now(word, value) },
        }?;
        for copy in [first, second].into_iter().flatten() {
            self.counts.copies.add(1);
            self.counts.bytes.add(copy.bytes);
        }
        self.counts.publications.add(1);
        Ok(())
    }

    /// As [`send`](Self::send), but this thread copies, and stores the span's end as the index.
    ///
    /// # Safety
    ///
    /// `mapped` is of this transport. No one else uses the target's slots of the span, or writes the source's.
    #[inline]
    pub unsafe fn send_mapped(&self, mapped: Mapped, span: Span, to_device: bool) {
        let Mapped { host_slots, device_slots, ours, .. } = mapped;
        let (from, to) = if to_device { (host_slots, device_slots) } else { (device_slots, host_slots) };
        for (index, count) in span.parts() {
            let offset = ((index & (span.capacity - 1)) * span.slot_size) as usize;
            // SAFETY: by the invariant of `Mapped` both rings have `capacity` slots from these addresses on, and a part ends before the wrap; the caller
            // promises exclusive use.
            unsafe { to.add(offset).copy_from_nonoverlapping(from.add(offset), (count * span.slot_size) as usize) };
            self.counts.copies.add(1);
        }
        self.counts.flushes.add(1);
        self.counts.bytes.add(span.count * span.slot_size);
        self.counts.publications.add(1);
        // SAFETY: by the invariant of `Mapped`, a word of a live header.
        // SYNC POINT: slot published, slot released: to a kernel. Pairs with its acquire of the index.
        unsafe { ours.as_ref() }.store_release(span.end());
    }

    /// Returns the number of polls begun.
    pub const fn begun(&self) -> u64 {
        self.polls[0]
    }

    /// Returns true if one of the polls after the first `begun` is complete.
    pub const fn has_polled_since(&self, begun: u64) -> bool {
        self.polls[1] > begun
    }

    /// Polls the index that the kernel writes; `None` if the poll is in flight, or not yet due.
    pub fn poll(&mut self, index: impl FnOnce() -> Result<IndexWord>) -> Result<Option<u64>> {
        if let Kind::Mapped(Mapped { theirs, .. }) = self.kind {
            self.polls = [self.polls[0] + 1; 2];
            self.counts.polls.add(1);
            // SAFETY: by the invariant of `Mapped`, a word of a live header.
            // SYNC POINT: slot published, slot released: by a kernel. Pairs with its publish_all.
            return Ok(Some(unsafe { theirs.as_ref() }.load_acquire()));
        }
        if !matches!(self.kind, Kind::Queued(Queue { polling: Some(_), .. })) {
            if let Kind::Queued(Queue { pace: Some(pace), .. }) = &mut self.kind
                && !pace.begin(Instant::now())
            {
                return Ok(None);
            }
            self.polls[0] += 1;
            self.counts.polls.add(1);
        }
        let polled = self.try_poll(index()?);
        if let Ok(Some(seen)) = polled {
            self.polls[1] = self.polls[0];
            if let Kind::Queued(Queue { pace: Some(pace), .. }) = &mut self.kind {
                pace.polled(seen);
            }
        }
        polled
    }

    fn try_poll(&mut self, index: IndexWord) -> Result<Option<u64>> {
        let from = match index {
            IndexWord::Mapped(_) => return Ok(index.load()),
            IndexWord::Remote(from) => from,
        };
        let Kind::Queued(queue) = &mut self.kind else { return self.read_now(from).map(Some) };
        let (copy, staged) = to_staging(&self.staging, from, QUEUED_POLL)?;
        let in_flight = match queue.polling.take() {
            None => {
                // SAFETY: the source is the kernel's word of a live header, the target a word of the staging pages that no other poll uses; both are
                // accessed as words. `Rings` keeps the header until the copy is complete, and the staging pages list it.
                let ticket = unsafe { self.backend.copy(&copy, queue.stream.id()) }?;
                self.staging.used(ticket)?;
                queue.last = Some(ticket);
                ticket
            }
            Some(ticket) if self.backend.wait(ticket, Some(Duration::ZERO))? => return Ok(Some(staged.load_acquire())),
            Some(ticket) => ticket,
        };
        queue.polling = Some(in_flight);
        Ok(None)
    }

    /// Reads a word by a blocking copy, which does not wait for queued operations.
    pub fn read_now(&self, from: Address) -> Result<u64> {
        let (copy, staged) = to_staging(&self.staging, from, BLOCKING_READ)?;
        // SAFETY: the source is a word of a live header, the target a word of the staging pages that no queued poll uses; both are accessed as words. The
        // copy is complete when this call returns.
        unsafe { self.backend.copy_now(&copy) }?;
        Ok(staged.load_acquire())
    }

    /// Returns true if a queued operation is complete.
    ///
    /// # Errors
    ///
    /// The operation's error, once.
    pub fn is_complete(&self, ticket: Ticket) -> Result<bool> {
        self.backend.wait(ticket, Some(Duration::ZERO))
    }

    /// Waits until no queued operation uses the rings. Their errors are those that led here. Of a driver that does not answer, they may go on: later
    /// operations of this stream are executed after them, and write the same again.
    pub fn settle(&mut self) {
        if let Kind::Queued(queue) = &mut self.kind {
            queue.polling = None;
            let _ = queue.stream.synchronize();
        }
    }

    pub const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }
}

impl Queue {
    /// Queues the copies of a span; returns their tickets.
    ///
    /// # Safety
    ///
    /// The slots are live until the copies are complete; meanwhile no one writes the source or uses the target.
    pub unsafe fn copy_slots(
        &mut self,
        span: Span,
        from: impl Fn(u64) -> Result<Address>,
        to: impl Fn(u64) -> Result<Address>,
    ) -> Result<[Option<Ticket>; 2]> {
        let mut tickets = [None; 2];
        for ((index, count), ticket) in span.parts().zip(&mut tickets) {
            let copy = Copy { to: to(index)?, from: from(index)?, bytes: count * span.slot_size };
            // SAFETY: the caller promises live slots that no one else uses until the copy is complete.
            *ticket = Some(unsafe { self.stream.backend().copy(&copy, self.stream.id()) }?);
            self.last = *ticket;
            self.counts.copies.add(1);
            self.counts.bytes.add(copy.bytes);
        }
        Ok(tickets)
    }

    /// Queues the store of an index.
    ///
    /// # Safety
    ///
    /// The word is of a live header, and only this transport writes it.
    pub unsafe fn store_index(&mut self, IndexStore { word, value, since }: IndexStore) -> Result<Ticket> {
        let stream = self.stream.id();
        let since = since.unwrap_or(Ticket { stream, number: u64::MAX });
        // SAFETY: the caller promises a live word, which others only load.
        let ticket = unsafe { self.stream.backend().publish(word, value, since, stream) }?;
        self.last = Some(ticket);
        self.counts.publications.add(1);
        Ok(ticket)
    }
}

fn to_staging(staging: &Pages, from: Address, offset: u64) -> Result<(Copy, &HostWord)> {
    let Some(staged) = staging.host() else { return Err(Error::Unsupported { what: "pinned memory at a caller's host address" }) };
    // SAFETY: `QUEUED_POLL` or `BLOCKING_READ`: within the page.
    let staged = unsafe { staged.add(offset as usize) };
    // SAFETY: a word of the pages, which are borrowed; it is accessed as a word.
    Ok((Copy { to: Address::Host(staged), from, bytes: size_of::<u64>() as u64 }, unsafe { staged.cast().as_ref() }))
}

/// When to poll an index: at most once per interval, which doubles while the index stands still, up to 64 times the shortest.
pub(super) struct Pace {
    shortest: Duration,
    interval: Duration,
    begun: Option<Instant>,
    seen: Option<u64>,
}

impl Pace {
    const SLOWEST: u32 = 64;

    pub const fn new(shortest: Duration) -> Self {
        Self { shortest, interval: shortest, begun: None, seen: None }
    }

    /// Returns true, and starts an interval, if a poll is due.
    pub fn begin(&mut self, at: Instant) -> bool {
        let due = self.begun.is_none_or(|begun| at.saturating_duration_since(begun) >= self.interval);
        if due {
            self.begun = Some(at);
        }
        due
    }

    pub fn polled(&mut self, index: u64) {
        if self.seen.replace(index) == Some(index) {
            self.interval = (self.interval * 2).min(self.shortest * Self::SLOWEST);
        } else {
            self.hurry();
        }
    }

    pub const fn hurry(&mut self) {
        self.interval = self.shortest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_micros(50);

    fn interval(pace: &mut Pace, at: Instant) -> Duration {
        let mut waited = Duration::ZERO;
        while !pace.begin(at + waited) {
            waited += LEAST;
        }
        waited
    }

    #[test]
    fn the_interval_doubles_while_idle_and_resets_on_a_change() {
        let (mut pace, mut at) = (Pace::new(LEAST), Instant::now());
        assert!(pace.begin(at) && !pace.begin(at), "the first is due, and the next is not");
        pace.polled(7);
        for times in [1, 2, 4, 8, 16, 32, 64, 64] {
            let waited = interval(&mut pace, at);
            assert_eq!(waited, LEAST * times);
            at += waited;
            pace.polled(7);
        }
        assert!(!pace.begin(at + LEAST * 20));
        pace.hurry();
        assert!(!pace.begin(at + LEAST / 2) && pace.begin(at + LEAST * 20));
        at += LEAST * 20;
        pace.polled(7);
        assert_eq!(interval(&mut pace, at), LEAST * 2);
        at += LEAST * 2;
        pace.polled(8);
        assert_eq!(interval(&mut pace, at), LEAST, "another index is something");
    }
}
