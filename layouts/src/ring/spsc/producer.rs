//! The end that fills slots.

use core::hint::cold_path;
use core::ptr::NonNull;

use crate::attach::{AttachError, Corrupt};
use crate::ring::error::{PushError, ReserveError};
use crate::ring::header::{RingFlags, used};
use crate::ring::pace::Pace;
use crate::ring::slots::{Slots, geometry_of_both, place};
use crate::ring::{Bells, Row, end, owner};
use crate::{Machine, RingHeader, RingMessage, SliceCell, SlotCell, Word};

/// Fills slots and publishes them. One per ring.
pub struct Producer<'a, T, M: Machine> {
    /// Where the consumer's index is polled.
    own: &'a RingHeader<M::Word>,
    /// Where this end's index is published.
    peer: &'a RingHeader<M::Word>,
    slots: Slots<'a, M::Cell<T>>,
    // INVARIANT: end - tail <= capacity, wrapping, and the slots from tail up to end are this end's.
    /// The next slot to fill.
    tail: u64,
    /// Where this end's slots end: the consumer's index, as last seen, and the capacity. So one comparison says whether there are any.
    end: u64,
    pace: Pace,
    /// A batch was begun and has not ended: if it was forgotten, its last messages are still to be published.
    in_batch: bool,
    /// The header says that this end is open, and is to say so when it no longer is.
    announced: bool,
}

// SAFETY: a producer hands over `T`s, and its words are shared by their own accesses.
unsafe impl<T: Send, M: Machine> Send for Producer<'_, T, M> {}

impl<'a, T, M: Machine> Producer<'a, T, M> {
    /// Attaches to a ring in one piece of memory: header, then slots.
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
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::SPSC, base, len)? };
        // SAFETY: the caller's promise; so many slots were checked against `len`, and the header is not asked again.
        unsafe { Self::over(header, header, slots.cast(), layout.capacity()) }.map_err(AttachError::Corrupt)
    }

    /// Attaches to a ring whose two headers lie apart: `own` is polled, `peer` is written.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead, in either header.
    ///
    /// # Safety
    ///
    /// For `'a`, as many cells at `slots` as `own` says are valid and initialised, and nobody but this producer and one consumer touches them
    /// or the headers.
    pub unsafe fn new(own: &'a RingHeader<M::Word>, peer: &'a RingHeader<M::Word>, slots: NonNull<M::Cell<T>>) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        let layout = geometry_of_both::<T, _>(RingFlags::SPSC, own, peer)?;
        // SAFETY: the caller's promise; the layout's capacity is a power of two that fits memory.
        unsafe { Self::over(own, peer, slots, layout.capacity()) }.map_err(AttachError::Corrupt)
    }

    /// An end of a ring whose geometry the caller has checked already.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the indices claim what cannot be.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), for any `T` whose slots between the indices are initialised; `capacity` is that of the ring, a power of two that
    /// fits `usize`.
    pub unsafe fn over(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<M::Cell<T>>,
        capacity: u64,
    ) -> Result<Self, Corrupt> {
        let tail = peer.producer.tail.load();
        // SYNC POINT: slot released. Pairs with Consumer::publish.
        let head = own.consumer.head.load_acquire();
        used(head, tail, capacity)?;
        // SAFETY: the caller's promise.
        let slots = unsafe { Slots::new(slots, capacity) };
        Ok(Self { own, peer, slots, tail, end: head.wrapping_add(capacity), pace: Pace::new(tail), in_batch: false, announced: false })
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
        self.tail.wrapping_sub(self.poll()).min(self.capacity())
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
        self.end.wrapping_sub(self.tail)
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
            cold_path();
            match self.look() {
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
        M::Cell<T>: SliceCell<T>,
    {
        let wanted = values.len() as u64;
        if self.free() < wanted {
            self.look()?;
        }
        let count = wanted.min(self.free());
        let first = self.slots.before_wrap(self.tail, count) as usize;
        let (head, rest) = values[..count as usize].split_at(first);
        for (index, run) in [(self.tail, head), (self.tail.wrapping_add(first as u64), rest)] {
            let slots = self.slots.run(index);
            // SAFETY: `run` is short of the wrap and of the free slots, which are this end's.
            unsafe { slots.as_ptr().copy_from_nonoverlapping(run.as_ptr(), run.len()) };
        }
        self.tail = self.tail.wrapping_add(count);
        // A store of what stands there already would only take the line from the other side; a forgotten batch's messages stand behind it.
        if count > 0 || self.in_batch {
            self.publish();
        }
        Ok(count as usize)
    }

    /// Reserves `count` slots, to be written in place.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]: not now, never, or corrupt.
    pub fn reserve(&mut self, count: u64) -> Result<Grant<'_, 'a, T, M>, ReserveError> {
        if self.free() < count {
            if count > self.capacity() {
                return Err(ReserveError::TooLarge { capacity: self.capacity() });
            }
            let free = self.look().map_err(ReserveError::Corrupt)?;
            if free < count {
                // What a forgotten batch holds: nobody would make room for more while it cannot be seen.
                if self.in_batch {
                    self.publish();
                }
                return Err(ReserveError::Full { free });
            }
        }
        Ok(Grant { producer: self, count, written: 0 })
    }

    /// Publishes every `every` messages instead of each (at least 1).
    pub fn batch(&mut self, every: u64) -> BatchProducer<'_, 'a, T, M> {
        if self.in_batch {
            self.publish();
        }
        self.in_batch = true;
        let published = self.tail;
        BatchProducer { producer: self, published, every: every.max(1) }
    }

    /// Looks for free slots where there are fewer than wanted; how many there are now.
    #[inline(always)]
    fn look(&mut self) -> Result<u64, Corrupt> {
        if self.free() > 0 {
            return self.refresh();
        }
        let due = self.pace.is_due(self.end);
        if due {
            cold_path();
            self.pace.wait();
        }
        let head = self.poll();
        if due {
            cold_path();
            // None was free, so what is free now begins where the slots ended.
            let found = head.wrapping_add(self.capacity()).wrapping_sub(self.end);
            self.pace = self.pace.seen::<T>(self.end, self.slots.mask(), found);
        }
        // SAFETY: this end has just read it.
        unsafe { self.accept(head) }
    }

    /// Fills the next slot, which is free.
    #[inline(always)]
    fn fill(&mut self, value: T) {
        self.slots.prefetch_ahead::<true>(self.tail, self.free());
        // SAFETY: by the invariant the slot at `tail` is this end's while `free` is not 0, which callers have checked.
        self.slots.at(self.tail).with_mut(|slot| unsafe { slot.write(value) });
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(&self) {
        // SYNC POINT: slot published. Pairs with Consumer::poll.
        self.peer.producer.tail.store_release(self.tail);
    }
}

/// For lanes that share one endpoint: each holds an equal copy of its state, one of them talks to memory.
impl<'a, T, M: Machine> Producer<'a, T, M> {
    /// The consumer's index as it stands in memory.
    #[inline(always)]
    #[must_use]
    pub fn poll(&self) -> u64 {
        poll::<M>(self.own)
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
        let used = used(head, self.tail, self.slots.capacity())?;
        self.end = head.wrapping_add(self.slots.capacity());
        Ok(self.slots.capacity() - used)
    }

    /// The slots from the next one on.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self) -> Row<'a, M::Cell<T>> {
        // SAFETY: a slot is its cell.
        unsafe { self.slots.row(self.tail, 0) }
    }

    /// The slot `offset` places after the next one.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self, offset: u64) -> &'a M::Cell<T> {
        self.slots.at(self.tail.wrapping_add(offset))
    }

    /// Counts `count` slots as filled, without publishing.
    ///
    /// # Safety
    ///
    /// At most [`free`](Self::free), and each has been written, by whichever lane.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        debug_assert!(count <= self.free());
        self.tail = self.tail.wrapping_add(count);
    }

    /// The word and the value that publish what was filled, for [`Word::publish_all`].
    ///
    /// # Safety
    ///
    /// This value alone is stored to this word, once, when every lane is done with the slots that it speaks of.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publication(&self) -> (&'a M::Word, u64) {
        (&self.peer.producer.tail, self.tail)
    }
}

#[inline(always)]
fn poll<M: Machine>(own: &RingHeader<M::Word>) -> u64 {
    // SYNC POINT: slot released. Pairs with Consumer::publish.
    own.consumer.head.load_acquire()
}

impl<T, M: Machine> Drop for Producer<'_, T, M> {
    fn drop(&mut self) {
        if self.announced {
            owner::close(&self.peer.producer.owner);
        }
    }
}

/// Slots to be written in place. What has been written is published when the grant is dropped, also by a panic; forgetting the grant
/// publishes nothing and forgets the values.
pub struct Grant<'p, 'a, T, M: Machine> {
    producer: &'p mut Producer<'a, T, M>,
    count: u64,
    // INVARIANT: at most `count`; the first so many slots from the producer's tail are initialised.
    written: u64,
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

    /// Slots written so far, from the first.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Writes the next slot.
    ///
    /// # Errors
    ///
    /// The value, if all are written.
    #[inline]
    pub fn write(&mut self, value: T) -> Result<(), T> {
        if self.written == self.count {
            return Err(value);
        }
        // SAFETY: below `count` free slots after the tail, so this end's.
        self.producer.slot(self.written).with_mut(|slot| unsafe { slot.write(value) });
        self.written += 1;
        Ok(())
    }

    /// Writes from an iterator until it ends or all slots are written; how many it gave.
    pub fn fill(&mut self, values: impl IntoIterator<Item = T>) -> u64 {
        let before = self.written;
        let mut values = values.into_iter();
        while self.written < self.count {
            let Some(value) = values.next() else { break };
            // Cannot fail: checked by the loop, and dropping the value would be the iterator's loss.
            let _ = self.write(value);
        }
        self.written - before
    }

    /// Counts the first `count` slots as written, those that [`as_mut_slices`](Self::as_mut_slices) was used for.
    ///
    /// # Safety
    ///
    /// At most [`len`](Self::len), and each is initialised.
    pub unsafe fn assume_written(&mut self, count: u64) {
        debug_assert!(count <= self.count);
        self.written = count;
    }

    /// The granted slots that are not yet written, as two runs: before the wrap and after it.
    pub fn as_mut_slices(&mut self) -> [&mut [core::mem::MaybeUninit<T>]; 2]
    where
        M::Cell<T>: SliceCell<T>,
    {
        let Producer { slots, tail, .. } = &*self.producer;
        // What is written stays out of reach: it will be published as initialised.
        let (next, rest) = (tail.wrapping_add(self.written), self.count - self.written);
        let first = slots.before_wrap(next, rest);
        let run = |index: u64, count: u64| {
            // SAFETY: `count` free slots short of the wrap, this grant's as long as it is borrowed.
            unsafe { core::slice::from_raw_parts_mut(slots.run(index).as_ptr().cast(), count as usize) }
        };
        [run(next, first), run(next.wrapping_add(first), rest - first)]
    }

    /// Publishes what has been written, as dropping the grant does.
    pub fn commit(self) {}
}

impl<T, M: Machine> Drop for Grant<'_, '_, T, M> {
    fn drop(&mut self) {
        if self.written > 0 {
            self.producer.tail = self.producer.tail.wrapping_add(self.written);
            self.producer.publish();
        }
    }
}

/// Publishes every so many messages; also when the ring looks full or has become so, when the consumer has emptied what was published, on
/// [`flush`](Self::flush) and on drop. Its bound is messages, never time: flush before you wait.
///
/// Forgetting it leaves the last messages for the producer's next publish.
pub struct BatchProducer<'p, 'a, T, M: Machine> {
    producer: &'p mut Producer<'a, T, M>,
    published: u64,
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
            match self.producer.look() {
                Ok(0) => return Err(PushError::Full(value)),
                Ok(_) => {}
                Err(_) => return Err(PushError::Corrupt(value)),
            }
        }
        self.producer.fill(value);
        let pending = self.producer.tail.wrapping_sub(self.published);
        // A full ring is published at once, or both ends would wait for what a forgotten batch holds. Relaxed: only asks whether to hurry.
        if pending >= self.every || self.producer.free() == 0 || self.producer.own.consumer.head.load() == self.published {
            self.flush();
        }
        Ok(())
    }

    /// Publishes what is pending.
    #[inline]
    pub fn flush(&mut self) {
        // A store of what stands there already would only take the line from the consumer.
        if self.published != self.producer.tail {
            self.published = self.producer.tail;
            self.producer.publish();
        }
    }
}

impl<T, M: Machine> Drop for BatchProducer<'_, '_, T, M> {
    fn drop(&mut self) {
        self.flush();
        self.producer.in_batch = false;
    }
}
