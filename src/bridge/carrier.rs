//! [`Carrier`]: copies slots and stores indices of one direction.

use core::ptr::NonNull;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::far::Index;
use super::metrics::Counts;
use super::pace::Pace;
use super::strategy::TransferStrategy;
use crate::backend::{Backend, Copy, MemoryLocation, Place, StreamId, Ticket};
use crate::memory::Pages;
use crate::stream::Stream;
use crate::{Error, HostWord, Result, Word};

const QUEUED: u64 = 0;
const AT_ONCE: u64 = size_of::<u64>() as u64;

/// A word, its value, and the first operation whose failure prevents the store.
type Store = (Place, u64, Option<Ticket>);

pub(super) struct Carrier {
    backend: Arc<dyn Backend>,
    stream: Option<Stream>,
    pace: Option<Pace>,
    pub counts: Arc<Counts>,
    /// Polled indices: for queued and for blocking polls.
    staging: Pages,
    polling: Option<Ticket>,
    /// Numbers of the last begun and the last completed poll.
    polls: [u64; 2],
    last: Option<Ticket>,
}

impl Carrier {
    pub fn new(backend: &Arc<dyn Backend>, device: u32, strategy: TransferStrategy, counts: Arc<Counts>) -> Result<Self> {
        let staging = Pages::new(backend, device, MemoryLocation::Pinned, AT_ONCE + size_of::<u64>() as u64)?;
        let stream = if strategy == TransferStrategy::Sync { None } else { Some(Stream::new(backend, device)?) };
        let pace = match strategy {
            TransferStrategy::DmaPolling { poll_interval_us } => Some(Pace::new(Duration::from_micros(u64::from(poll_interval_us)))),
            _ => None,
        };
        Ok(Self { backend: Arc::clone(backend), stream, pace, counts, staging, polling: None, polls: [0; 2], last: None })
    }

    pub const fn is_queued(&self) -> bool {
        self.stream.is_some()
    }

    pub fn queue(&self) -> Option<StreamId> {
        self.stream.as_ref().map(Stream::id)
    }

    pub const fn hurry(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.hurry();
        }
    }

    pub fn last(&self) -> Option<Ticket> {
        self.last
    }

    /// # Safety
    ///
    /// The slots are live until the copies are complete; meanwhile no one writes the source or uses the target.
    pub unsafe fn slots(
        &mut self,
        stream: StreamId,
        [index, count, capacity, size]: [u64; 4],
        from: impl Fn(u64) -> Result<Place>,
        to: impl Fn(u64) -> Result<Place>,
    ) -> Result<[Option<Ticket>; 2]> {
        let mut tickets = [None; 2];
        for ((index, count), ticket) in parts(index, count, capacity).zip(&mut tickets) {
            let copy = Copy { to: to(index)?, from: from(index)?, bytes: count * size };
            // SAFETY: the caller's promise.
            *ticket = Some(unsafe { self.backend.copy(&copy, stream) }?);
            self.last = *ticket;
            self.counts.copies.add(1);
            self.counts.bytes.add(copy.bytes);
        }
        Ok(tickets)
    }

    /// # Safety
    ///
    /// A header's live word that only this carrier writes.
    pub unsafe fn publish(&mut self, stream: StreamId, (word, value, since): Store) -> Result<Ticket> {
        let since = since.unwrap_or(Ticket { stream, number: u64::MAX });
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.backend.publish(word, value, since, stream) }?;
        self.last = Some(ticket);
        self.counts.publications.add(1);
        Ok(ticket)
    }

    /// [`slots`](Self::slots), then [`publish`](Self::publish); blocking without a stream. Returns the first copy's and the store's tickets.
    ///
    /// # Safety
    ///
    /// As those two.
    pub unsafe fn send(
        &mut self,
        slots: [u64; 4],
        from: impl Fn(u64) -> Result<Place>,
        to: impl Fn(u64) -> Result<Place>,
        (word, value, since): Store,
    ) -> Result<[Option<Ticket>; 2]> {
        if let Some(stream) = self.queue() {
            // SAFETY: the caller's promise.
            let copies = unsafe { self.slots(stream, slots, from, to) }?;
            // SAFETY: as above.
            let published = unsafe { self.publish(stream, (word, value, since.or(copies[0]))) }?;
            return Ok([copies[0], Some(published)]);
        }
        let [index, count, capacity, size] = slots;
        let copy = |(index, count)| Ok::<_, Error>(Copy { to: to(index)?, from: from(index)?, bytes: count * size });
        let mut parts = parts(index, count, capacity).map(copy);
        let (first, second) = (parts.next().transpose()?, parts.next().transpose()?);
        match (first, second) {
            // SAFETY: the caller's promise.
            (Some(first), Some(second)) => unsafe { self.backend.copy_and_publish_now(&[first, second], word, value) },
            // SAFETY: as above.
            (Some(first), None) => unsafe { self.backend.copy_and_publish_now(&[first], word, value) },
            // SAFETY: as above.
            (None, _) => unsafe { self.backend.publish_now(word, value) },
        }?;
        for copy in [first, second].into_iter().flatten() {
            self.counts.copies.add(1);
            self.counts.bytes.add(copy.bytes);
        }
        self.counts.publications.add(1);
        Ok([None; 2])
    }

    /// As [`send`](Self::send), but this thread copies, between mapped rings.
    ///
    /// # Safety
    ///
    /// As `send`; the first slots of two rings.
    #[inline]
    pub unsafe fn send_directly(
        &self,
        [index, count, capacity, size]: [u64; 4],
        [from, to]: [NonNull<u8>; 2],
        (word, value): (NonNull<HostWord>, u64),
    ) {
        for (index, count) in parts(index, count, capacity) {
            let offset = ((index & (capacity - 1)) * size) as usize;
            // SAFETY: slots of these rings: the caller's promise.
            unsafe { to.add(offset).copy_from_nonoverlapping(from.add(offset), (count * size) as usize) };
            self.counts.copies.add(1);
        }
        self.counts.flushes.add(1);
        self.counts.bytes.add(count * size);
        self.counts.publications.add(1);
        // SAFETY: a live header's word: the caller's promise.
        // SYNC POINT: slot published, slot released: to a kernel. Pairs with its acquire of the index.
        unsafe { word.as_ref() }.store_release(value);
    }

    #[inline]
    pub fn poll_directly(&mut self, word: NonNull<HostWord>) -> u64 {
        self.polls = [self.polls[0] + 1; 2];
        self.counts.polls.add(1);
        // SAFETY: a live header's word: the invariant of `Direct`.
        // SYNC POINT: slot published, slot released: by a kernel. Pairs with its publish_all.
        unsafe { word.as_ref() }.load_acquire()
    }

    pub const fn begun(&self) -> u64 {
        self.polls[0]
    }

    pub const fn has_polled_since(&self, begun: u64) -> bool {
        self.polls[1] > begun
    }

    pub fn poll(&mut self, index: Index) -> Result<Option<u64>> {
        if self.polling.is_none() && !self.begin() {
            return Ok(None);
        }
        let polled = self.try_poll(index);
        if let Ok(Some(seen)) = polled {
            self.polls[1] = self.polls[0];
            if let Some(pace) = &mut self.pace {
                pace.polled(seen);
            }
        }
        polled
    }

    fn begin(&mut self) -> bool {
        let due = self.pace.as_mut().is_none_or(|pace| pace.begin(Instant::now()));
        if due {
            self.polls[0] += 1;
            self.counts.polls.add(1);
        }
        due
    }

    fn try_poll(&mut self, index: Index) -> Result<Option<u64>> {
        let from = match index {
            Index::Seen(_) => return Ok(index.seen()),
            Index::Copied(from) => from,
        };
        let Some(stream) = &self.stream else { return self.read_now(from).map(Some) };
        match self.polling.take() {
            None => {
                // SAFETY: a live header's word and one of this carrier's own, accessed as words. `Pair` keeps the ring; the pages list the copy.
                let ticket = unsafe { self.backend.copy(&self.to_staging(from, QUEUED)?.0, stream.id()) }?;
                self.staging.used(ticket)?;
                (self.polling, self.last) = (Some(ticket), Some(ticket));
                Ok(None)
            }
            Some(ticket) => {
                if !self.backend.wait(ticket, Some(Duration::ZERO))? {
                    self.polling = Some(ticket);
                    return Ok(None);
                }
                Ok(Some(self.to_staging(from, QUEUED)?.1.load_acquire()))
            }
        }
    }

    fn to_staging(&self, from: Place, word: u64) -> Result<(Copy, &HostWord)> {
        let Some(staged) = self.staging.host() else { return Err(Error::Unsupported { what: "pinned memory at a caller's host address" }) };
        // SAFETY: `QUEUED` or `AT_ONCE`: within the page.
        let staged = unsafe { staged.add(word as usize) };
        // SAFETY: accessed as words, which live as long as the carrier.
        Ok((Copy { to: Place::Host(staged), from, bytes: size_of::<u64>() as u64 }, unsafe { staged.cast().as_ref() }))
    }

    /// Blocking, regardless of queued operations.
    pub fn read_now(&self, from: Place) -> Result<u64> {
        let (copy, staged) = self.to_staging(from, AT_ONCE)?;
        // SAFETY: as for the queued copy, and complete at return.
        unsafe { self.backend.copy_now(&copy) }?;
        Ok(staged.load_acquire())
    }

    pub fn is_over(&self, ticket: Ticket) -> Result<bool> {
        self.backend.wait(ticket, Some(Duration::ZERO))
    }

    pub fn settle(&mut self) {
        self.polling = None;
        if let Some(stream) = &self.stream {
            let _ = stream.synchronize();
        }
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }
}

fn parts(index: u64, count: u64, capacity: u64) -> impl Iterator<Item = (u64, u64)> {
    let first = count.min(capacity - (index & (capacity - 1)));
    [(index, first), (index.wrapping_add(first), count - first)].into_iter().filter(|&(_, count)| count > 0)
}
