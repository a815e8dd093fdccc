//! The end that fills slots.

use core::mem::offset_of;
use core::ptr::NonNull;

use super::full;
use crate::attach::{AttachError, Corrupt};
use crate::ring::error::{PushError, ReserveError};
use crate::ring::header::{RingFlags, used};
use crate::ring::slots::{Slot, Slots, geometry_of_both, place};
use crate::ring::{Bells, Row, end, owner};
use crate::{Machine, RingHeader, RingMessage, SlotCell, Word};

/// Fills slots and publishes them. One per ring.
pub struct Producer<'a, T, M: Machine> {
    /// Where the consumer's index is polled.
    own: &'a RingHeader<M::Word>,
    /// Where this end says that it is open or closed.
    peer: &'a RingHeader<M::Word>,
    slots: Slots<'a, Slot<M::Word, M::Cell<T>>>,
    // INVARIANT: tail - head <= capacity, wrapping, and the slots from tail up to head + capacity are this end's: none of them has the flag
    // of its index. Slots from `published` to tail are written, and only the first of them has not its flag.
    /// The next slot to fill.
    tail: u64,
    /// The first slot that is not published.
    published: u64,
    /// The consumer's index, as last seen.
    head: u64,
    announced: bool,
}

// SAFETY: a producer hands over `T`s, and its words are shared by their own accesses.
unsafe impl<T: Send, M: Machine> Send for Producer<'_, T, M> {}

impl<'a, T, M: Machine> Producer<'a, T, M> {
    /// Attaches to a ring in one piece of memory: header, then slots. Looks at every slot once.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and nobody but this producer and one consumer touches them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller's promise.
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::FLAGGED, base, len)? };
        // SAFETY: the caller's promise; as many slots lie within `len`.
        Ok(unsafe { Self::over(header, header, slots.cast(), layout.capacity()) })
    }

    /// Attaches to a ring whose two headers lie apart: `own` is polled, `peer` is written. Looks at every slot once.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead, in either header.
    ///
    /// # Safety
    ///
    /// For `'a`, as many slots at `slots` as `own` says are valid and initialised, and nobody but this producer and one consumer touches them
    /// or the headers.
    pub unsafe fn new(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<Slot<M::Word, M::Cell<T>>>,
    ) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        let layout = geometry_of_both::<T, _>(RingFlags::FLAGGED, own, peer)?;
        // SAFETY: the caller's promise; the layout's capacity is a power of two that fits memory.
        Ok(unsafe { Self::over(own, peer, slots, layout.capacity()) })
    }

    /// An end of a ring whose geometry the caller has checked already. Looks at every slot once.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), for any `T` whose slots are initialised where their flags say so; `capacity` is that of the ring, a power of two
    /// that fits `usize`.
    pub unsafe fn over(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<Slot<M::Word, M::Cell<T>>>,
        capacity: u64,
    ) -> Self {
        // SAFETY: the caller's promise.
        let slots = unsafe { Slots::new(slots, capacity) };
        // SYNC POINT: slot released. Pairs with Consumer::release.
        let head = own.consumer.head.load_acquire();
        let is_full = |offset: u64| {
            let index = head.wrapping_add(offset);
            slots.at(index).word.load() == full(index, capacity)
        };
        // Plain loops: on a device an iterator that is kept goes through local memory.
        let mut waiting = 0;
        while waiting < capacity && is_full(waiting) {
            waiting += 1;
        }
        // Flags that a producer left behind a message that it never published: taken back, or the next message would publish them.
        let mut offset = waiting;
        while offset < capacity {
            if is_full(offset) {
                slots.at(head.wrapping_add(offset)).word.store(0);
            }
            offset += 1;
        }
        let tail = head.wrapping_add(waiting);
        Self { own, peer, slots, tail, published: tail, head, announced: false }
    }

    /// Says in the header that this end is open, and on drop that it is closed: the other end's `is_disconnected` sees it.
    #[must_use]
    pub fn announce(mut self) -> Self {
        owner::open(&self.peer.producer.owner);
        self.announced = true;
        self
    }

    /// Whether the consumer announced itself and has left.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        owner::is_closed(&self.own.consumer.owner)
    }

    pub(in crate::ring) const fn bells(&self) -> Bells<'a, M::Word> {
        end::of_producer(self.own, self.peer)
    }

    /// Messages in the ring now, those of an unfinished batch included; at most the capacity, whatever the other side claims.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.tail.wrapping_sub(self.own.consumer.head.load()).min(self.capacity())
    }

    /// Whether nothing is in the ring now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no slot is free now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Slots in all.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.slots.capacity()
    }

    /// Index of the next slot to fill.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Slots that are free as far as this end has looked; [`refresh`](Self::refresh) looks.
    #[must_use]
    #[inline(always)]
    pub const fn free(&self) -> u64 {
        self.slots.capacity() - self.tail.wrapping_sub(self.head)
    }

    /// Looks how far the consumer is: slots that are free now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be; this end goes on with what it knew.
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        let head = self.poll();
        // SAFETY: this end has just read it.
        unsafe { self.accept(head) }
    }

    /// Pushes one value and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.free() == 0 {
            // What a forgotten grant or batch wrote: nobody would make room for more while it cannot be seen.
            self.publish();
            match self.refresh() {
                Ok(0) => return Err(PushError::Full(value)),
                Ok(_) => {}
                Err(_) => return Err(PushError::Corrupt(value)),
            }
        }
        self.fill(value);
        self.publish();
        Ok(())
    }

    /// Pushes as many of `values` as fit, from the first, and publishes them together; how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the consumer's index claims what cannot be; nothing was taken.
    pub fn push_slice(&mut self, values: &[T]) -> Result<usize, Corrupt>
    where
        T: Copy,
    {
        if self.free() < values.len() as u64 {
            self.refresh()?;
        }
        let count = self.free().min(values.len() as u64);
        for (_, value) in (0..count).zip(values) {
            self.fill(*value);
        }
        self.publish();
        Ok(count as usize)
    }

    /// Reserves `count` slots, to be written one after the other.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]: not now, never, or corrupt.
    pub fn reserve(&mut self, count: u64) -> Result<Grant<'_, 'a, T, M>, ReserveError> {
        if self.free() < count {
            if count > self.capacity() {
                return Err(ReserveError::TooLarge { capacity: self.capacity() });
            }
            self.publish();
            let free = self.refresh().map_err(ReserveError::Corrupt)?;
            if free < count {
                return Err(ReserveError::Full { free });
            }
        }
        let end = self.tail.wrapping_add(count);
        Ok(Grant { producer: self, count, end })
    }

    /// Publishes every `every` messages instead of each (at least 1).
    pub fn batch(&mut self, every: u64) -> BatchProducer<'_, 'a, T, M> {
        self.publish();
        BatchProducer { producer: self, every: every.max(1) }
    }

    /// Fills the next slot, which is free. Its flag goes up at once, unless it is the first that is not published.
    #[inline(always)]
    fn fill(&mut self, value: T) {
        let slot = self.slots.at(self.tail);
        // SAFETY: by the invariant the slot at `tail` is this end's while `free` is not 0, which callers have checked.
        slot.cell.with_mut(|place| unsafe { place.write(value) });
        if self.tail != self.published {
            // Nobody looks at it before it has acquired the flag of the first.
            slot.word.store(full(self.tail, self.slots.capacity()));
        }
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(&mut self) {
        if self.published != self.tail {
            // SYNC POINT: slot published. Pairs with Consumer::is_there.
            self.slots.at(self.published).word.store_release(full(self.published, self.slots.capacity()));
            self.published = self.tail;
        }
    }
}

/// For lanes that share one endpoint: each holds an equal copy of its state and writes slots of its own, one of them publishes.
impl<'a, T, M: Machine> Producer<'a, T, M> {
    /// The consumer's index as it stands in memory.
    #[inline(always)]
    #[must_use]
    pub fn poll(&self) -> u64 {
        // SYNC POINT: slot released. Pairs with Consumer::release.
        self.own.consumer.head.load_acquire()
    }

    /// Takes note of an index that was polled; slots that are free.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if it claims what cannot be; nothing changes.
    ///
    /// # Safety
    ///
    /// `head` came from [`poll`](Self::poll) on this ring, and what that lane had seen then is visible to this one (a barrier).
    #[inline(always)]
    pub unsafe fn accept(&mut self, head: u64) -> Result<u64, Corrupt> {
        let used = used(head, self.tail, self.capacity())?;
        self.head = head;
        Ok(self.capacity() - used)
    }

    /// The payload of the slots from the next one on.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self) -> Row<'a, M::Cell<T>> {
        // SAFETY: each slot has its cell there.
        unsafe { self.slots.row(self.tail, offset_of!(Slot<M::Word, M::Cell<T>>, cell)) }
    }

    /// Raises the flag of the slot `offset` places after the next one, which is not the first of its batch: nobody looks at it before the
    /// first's, which [`publication`](Self::publication) raises.
    ///
    /// # Safety
    ///
    /// `offset` is not 0 and below the slots that are [`free`](Self::free); the slot is written before the batch is published.
    #[inline(always)]
    pub unsafe fn raise(&self, offset: u64) {
        let index = self.tail.wrapping_add(offset);
        self.slots.at(index).word.store(full(index, self.capacity()));
    }

    /// The word and the value that publish a batch from the next slot on, for [`Word::publish_all`].
    ///
    /// # Safety
    ///
    /// This value alone is stored to this word, once, when every lane has written its slots and [raised](Self::raise) their flags.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publication(&self) -> (&'a M::Word, u64) {
        (&self.slots.at(self.tail).word, full(self.tail, self.capacity()))
    }

    /// Counts `count` slots as filled and published.
    ///
    /// # Safety
    ///
    /// At most [`free`](Self::free), and one lane stores their [`publication`](Self::publication).
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        self.tail = self.tail.wrapping_add(count);
        self.published = self.tail;
    }
}

impl<T, M: Machine> Drop for Producer<'_, T, M> {
    fn drop(&mut self) {
        // What a forgotten grant or batch had written.
        self.publish();
        if self.announced {
            owner::close(&self.peer.producer.owner);
        }
    }
}

/// Slots to be written one after the other. What has been written is published when the grant is dropped, also by a panic; forgetting it
/// leaves that to the producer's next publish.
pub struct Grant<'p, 'a, T, M: Machine> {
    producer: &'p mut Producer<'a, T, M>,
    count: u64,
    // INVARIANT: slots from the producer's tail to here are free.
    end: u64,
}

impl<T, M: Machine> Grant<'_, '_, T, M> {
    /// Slots granted.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Whether none were asked for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Slots written so far.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.count - self.end.wrapping_sub(self.producer.tail)
    }

    /// Writes the next slot.
    ///
    /// # Errors
    ///
    /// The value, if all are written.
    #[inline]
    pub fn write(&mut self, value: T) -> Result<(), T> {
        if self.producer.tail == self.end {
            return Err(value);
        }
        self.producer.fill(value);
        Ok(())
    }

    /// Writes from an iterator until it ends or all slots are written; how many it gave.
    pub fn fill(&mut self, values: impl IntoIterator<Item = T>) -> u64 {
        let before = self.written();
        let mut values = values.into_iter();
        while self.producer.tail != self.end {
            let Some(value) = values.next() else { break };
            self.producer.fill(value);
        }
        self.written() - before
    }

    /// Publishes what has been written, as dropping the grant does.
    pub fn commit(self) {}
}

impl<T, M: Machine> Drop for Grant<'_, '_, T, M> {
    fn drop(&mut self) {
        self.producer.publish();
    }
}

/// Publishes every so many messages; also when the ring looks full, when the consumer has emptied what was published, on
/// [`flush`](Self::flush) and on drop. Its bound is messages, never time: flush before you wait.
///
/// Forgetting it leaves the last messages for the producer's next publish.
pub struct BatchProducer<'p, 'a, T, M: Machine> {
    producer: &'p mut Producer<'a, T, M>,
    every: u64,
}

impl<T, M: Machine> BatchProducer<'_, '_, T, M> {
    /// Pushes one value; publishes it with its batch.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value; what was pushed before has been published.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.producer.free() == 0 {
            self.flush();
            match self.producer.refresh() {
                Ok(0) => return Err(PushError::Full(value)),
                Ok(_) => {}
                Err(_) => return Err(PushError::Corrupt(value)),
            }
        }
        self.producer.fill(value);
        let Producer { tail, published, own, .. } = &*self.producer;
        // Relaxed: only asks whether to hurry.
        if tail.wrapping_sub(*published) >= self.every || own.consumer.head.load() == *published {
            self.flush();
        }
        Ok(())
    }

    /// Publishes what is pending.
    #[inline]
    pub fn flush(&mut self) {
        self.producer.publish();
    }
}

impl<T, M: Machine> Drop for BatchProducer<'_, '_, T, M> {
    fn drop(&mut self) {
        self.flush();
    }
}
