//! The end that empties slots.

use core::hint::cold_path;
use core::ptr::NonNull;

use crate::attach::{AttachError, Corrupt};
use crate::ring::drain::Take;
use crate::ring::error::PopError;
use crate::ring::header::{RingFlags, used};
use crate::ring::pace::Pace;
use crate::ring::slots::{Slots, geometry_of_both, place};
use crate::ring::{Bells, Drain, Row, end, owner};
use crate::{Machine, RingHeader, RingMessage, SliceCell, SlotCell, Word};

/// Empties slots and releases them. One per ring.
pub struct Consumer<'a, T, M: Machine> {
    /// Where the producer's index is polled.
    own: &'a RingHeader<M::Word>,
    /// Where this end's index is published.
    peer: &'a RingHeader<M::Word>,
    slots: Slots<'a, M::Cell<T>>,
    // INVARIANT: tail - head <= capacity, wrapping, and the slots from head up to tail are initialised and this end's.
    /// The next slot to empty.
    head: u64,
    /// The producer's index, as last seen.
    tail: u64,
    pace: Pace,
    /// A batch was begun and has not ended: if it was forgotten, its last slots are still to be released.
    in_batch: bool,
    /// The header says that this end is open, and is to say so when it no longer is.
    announced: bool,
}

// SAFETY: a consumer is handed `T`s, and its words are shared by their own accesses.
unsafe impl<T: Send, M: Machine> Send for Consumer<'_, T, M> {}

impl<'a, T, M: Machine> Consumer<'a, T, M> {
    /// Attaches to a ring in one piece of memory: header, then slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and nobody but this consumer and one producer touches them.
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
    /// For `'a`, as many cells at `slots` as `own` says are valid and initialised, and nobody but this consumer and one producer touches them
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
        let head = peer.consumer.head.load();
        // SYNC POINT: slot published. Pairs with Producer::publish.
        let tail = own.producer.tail.load_acquire();
        used(head, tail, capacity)?;
        // SAFETY: the caller's promise.
        let slots = unsafe { Slots::new(slots, capacity) };
        Ok(Self { own, peer, slots, head, tail, pace: Pace::new(head), in_batch: false, announced: false })
    }

    /// Says in the header that this end is open, and on drop that it is closed: the other end's `is_disconnected` sees it.
    #[must_use]
    pub fn announce(mut self) -> Self {
        owner::open(&self.peer.consumer.owner);
        self.announced = true;
        self
    }

    /// Whether the producer announced itself and has left; what it published before can still be popped.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        owner::is_closed(&self.own.producer.owner)
    }

    pub(in crate::ring) const fn bells(&self) -> Bells<'a, M::Word> {
        end::of_consumer(self.own, self.peer)
    }

    /// Messages in the ring now, those of an unfinished batch included; at most the capacity, whatever the other side claims.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.poll().wrapping_sub(self.head).min(self.capacity())
    }

    /// Whether nothing is in the ring now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots that are free now.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity() - self.len()
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

    /// Index of the next slot to empty.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Messages that wait as far as this end has looked; [`refresh`](Self::refresh) looks.
    #[must_use]
    #[inline(always)]
    pub const fn available(&self) -> u64 {
        self.tail.wrapping_sub(self.head)
    }

    /// Looks how far the producer is: messages that wait now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be; this end goes on with what it knew.
    #[inline]
    pub fn refresh(&mut self) -> Result<u64, Corrupt> {
        let tail = self.poll();
        // SAFETY: this end has just read it.
        unsafe { self.accept(tail) }
    }

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if self.available() == 0
            && let Err(nothing) = self.more()
        {
            self.publish_pending();
            return Err(nothing);
        }
        let value = self.take();
        self.publish();
        Ok(value)
    }

    /// Pops as many values as wait and fit, and releases their slots together; how many.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index claims what cannot be; nothing was popped.
    pub fn pop_slice(&mut self, values: &mut [T]) -> Result<usize, Corrupt>
    where
        T: Copy,
        M::Cell<T>: SliceCell<T>,
    {
        let wanted = values.len() as u64;
        if self.available() < wanted {
            self.look()?;
        }
        let count = wanted.min(self.available());
        let first = self.slots.before_wrap(self.head, count) as usize;
        let (head, rest) = values[..count as usize].split_at_mut(first);
        for (index, run) in [(self.head, head), (self.head.wrapping_add(first as u64), rest)] {
            let slots = self.slots.run(index);
            // SAFETY: `run` is short of the wrap and of the filled slots, which are initialised and this end's.
            unsafe { slots.as_ptr().copy_to_nonoverlapping(run.as_mut_ptr(), run.len()) };
        }
        self.head = self.head.wrapping_add(count);
        // A store of what stands there already would only take the line from the other side; a forgotten batch's slots stand behind it.
        if count > 0 || self.in_batch {
            self.publish();
        }
        Ok(count as usize)
    }

    /// Looks at up to `most` waiting messages in place; none is taken until [`Chunk::release`].
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty (also for `most == 0`), or corrupt.
    pub fn peek(&mut self, most: u64) -> Result<Chunk<'_, 'a, T, M>, PopError> {
        if self.available() < most {
            self.look().map_err(PopError::Corrupt)?;
        }
        let count = most.min(self.available());
        if count == 0 {
            self.publish_pending();
            return Err(PopError::Empty);
        }
        Ok(Chunk { consumer: self, count })
    }

    /// The next message, seen in place; it remains the next.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    pub fn front(&mut self) -> Result<&T, PopError>
    where
        M::Cell<T>: SliceCell<T>,
    {
        self.peek(1)?;
        // SAFETY: it is there and this end's until it is released, for which it takes `&mut`; the cell is plain bytes.
        Ok(self.slots.at(self.head).with(|slot| unsafe { &*slot }))
    }

    /// All messages that wait now, in place, as two runs: before the wrap and after it. None is taken.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index claims what cannot be.
    pub fn as_slices(&mut self) -> Result<[&[T]; 2], Corrupt>
    where
        M::Cell<T>: SliceCell<T>,
    {
        if self.refresh()? == 0 {
            self.publish_pending();
        }
        Ok(self.runs(self.available()))
    }

    /// Releases every `every` messages instead of each (at least 1).
    ///
    /// For `Copy` values only: what a forgotten batch popped is released by this consumer's next release, or when it finds nothing; without
    /// either, the next consumer of the ring pops it again.
    pub fn batch(&mut self, every: u64) -> BatchConsumer<'_, 'a, T, M>
    where
        T: Copy,
    {
        if self.in_batch {
            self.publish();
        }
        self.in_batch = true;
        let released = self.head;
        BatchConsumer { consumer: self, released, every: every.max(1) }
    }

    /// Looks for messages where there are fewer than wanted; how many wait now.
    fn look(&mut self) -> Result<u64, Corrupt> {
        if self.available() > 0 {
            return self.refresh();
        }
        let tail = self.poll_paced();
        // SAFETY: this end has just read it.
        unsafe { self.accept(tail) }
    }

    /// Looks for messages where none is left.
    #[inline(always)]
    fn more(&mut self) -> Result<(), PopError> {
        let tail = self.poll_paced();
        // One message is what a consumer finds that is right behind, and what takes the fewest instructions to see.
        if tail != self.head.wrapping_add(1) {
            cold_path();
            // One comparison says that there are some and that there may be so many: one less than none is the greatest number.
            if tail.wrapping_sub(self.head).wrapping_sub(1) > self.slots.mask() {
                // Who polls for a message has its line under way when the index comes, and does not wait for one after the other.
                self.slots.prefetch(self.head);
                return Err(nothing(self.head, tail, self.slots.mask()));
            }
        }
        self.tail = tail;
        Ok(())
    }

    /// The producer's index, where nothing is left of what was seen before.
    #[inline(always)]
    fn poll_paced(&mut self) -> u64 {
        let due = self.pace.is_due(self.head);
        if due {
            cold_path();
            self.pace.wait();
        }
        let tail = self.poll();
        if due {
            cold_path();
            self.pace = self.pace.seen::<T>(self.head, self.slots.mask(), tail.wrapping_sub(self.head));
        }
        tail
    }

    /// Takes the next value, which waits.
    #[inline(always)]
    fn take(&mut self) -> T {
        self.slots.prefetch_ahead::<false>(self.head, self.available());
        // SAFETY: by the invariant the slot at `head` is initialised and this end's while `available` is not 0, which callers have
        // checked; advancing makes sure that it is read once.
        let value = self.slots.at(self.head).with(|slot| unsafe { slot.read() });
        self.head = self.head.wrapping_add(1);
        value
    }

    /// So many messages, at most what is available, as two runs: before the wrap and after it.
    fn runs(&self, count: u64) -> [&[T]; 2]
    where
        M::Cell<T>: SliceCell<T>,
    {
        let first = self.slots.before_wrap(self.head, count);
        let run = |index: u64, count: u64| {
            // SAFETY: `count` initialised slots short of the wrap; not released while borrowed.
            unsafe { core::slice::from_raw_parts(self.slots.run(index).as_ptr(), count as usize) }
        };
        [run(self.head, first), run(self.head.wrapping_add(first), count - first)]
    }

    /// Releases what a forgotten batch had popped: a producer that waits for those slots fills no others.
    #[inline(always)]
    fn publish_pending(&self) {
        if self.in_batch {
            self.publish();
        }
    }

    #[inline(always)]
    fn publish(&self) {
        // SYNC POINT: slot released. Pairs with Producer::poll.
        self.peer.consumer.head.store_release(self.head);
    }
}

#[inline(always)]
fn poll<M: Machine>(own: &RingHeader<M::Word>) -> u64 {
    // SYNC POINT: slot published. Pairs with Producer::publish.
    own.producer.tail.load_acquire()
}

/// Why there is nothing between these indices.
#[cold]
fn nothing(head: u64, tail: u64, mask: u64) -> PopError {
    if head == tail { PopError::Empty } else { PopError::Corrupt(Corrupt { head, tail, capacity: mask + 1 }) }
}

/// For lanes that share one endpoint: each holds an equal copy of its state, one of them talks to memory.
impl<'a, T, M: Machine> Consumer<'a, T, M> {
    /// The producer's index as it stands in memory.
    #[inline(always)]
    #[must_use]
    pub fn poll(&self) -> u64 {
        poll::<M>(self.own)
    }

    /// Takes note of an index that was polled; messages that wait.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if it claims what cannot be; nothing changes.
    ///
    /// # Safety
    ///
    /// `tail` came from [`poll`](Self::poll) on this ring, and what that lane had seen then is visible to this one (a barrier).
    #[inline(always)]
    pub unsafe fn accept(&mut self, tail: u64) -> Result<u64, Corrupt> {
        let used = used(self.head, tail, self.slots.capacity())?;
        self.tail = tail;
        Ok(used)
    }

    /// The slots from the next one on.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self) -> Row<'a, M::Cell<T>> {
        // SAFETY: a slot is its cell.
        unsafe { self.slots.row(self.head, 0) }
    }

    /// The slot `offset` places after the next one.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self, offset: u64) -> &'a M::Cell<T> {
        self.slots.at(self.head.wrapping_add(offset))
    }

    /// Counts `count` slots as emptied, without releasing them.
    ///
    /// # Safety
    ///
    /// At most [`available`](Self::available), and no lane reads them any more.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        debug_assert!(count <= self.available());
        self.head = self.head.wrapping_add(count);
    }

    /// The word and the value that release what was emptied, for [`Word::publish_all`].
    ///
    /// # Safety
    ///
    /// This value alone is stored to this word, once, when every lane is done with the slots that it speaks of.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publication(&self) -> (&'a M::Word, u64) {
        (&self.peer.consumer.head, self.head)
    }
}

impl<T, M: Machine> Drop for Consumer<'_, T, M> {
    fn drop(&mut self) {
        if self.announced {
            owner::close(&self.peer.consumer.owner);
        }
    }
}

/// Waiting messages, seen in place. Dropping it takes none.
pub struct Chunk<'c, 'a, T, M: Machine> {
    consumer: &'c mut Consumer<'a, T, M>,
    // INVARIANT: at most what is available, and not 0.
    count: u64,
}

impl<T, M: Machine> Chunk<'_, '_, T, M> {
    /// Messages seen, at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// The message `offset` places after the first; `None` past the end.
    #[must_use]
    #[inline]
    pub fn get(&self, offset: u64) -> Option<&T>
    where
        M::Cell<T>: SliceCell<T>,
    {
        let place = self.with(offset, core::ptr::from_ref)?;
        // SAFETY: there until it is released, which takes the chunk; the cell is plain bytes.
        Some(unsafe { &*place })
    }

    /// The messages in place, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &T>
    where
        M::Cell<T>: SliceCell<T>,
    {
        (0..self.count).map_while(|offset| self.get(offset))
    }

    /// As [`get`](Self::get), of machines whose cells are no plain bytes, too.
    #[must_use]
    #[inline]
    pub fn with<R>(&self, offset: u64, read: impl FnOnce(&T) -> R) -> Option<R> {
        if offset >= self.count {
            return None;
        }
        // SAFETY: below the available count, so initialised and this end's; nobody writes it until it is released.
        Some(self.consumer.slot(offset).with(|slot| read(unsafe { &*slot })))
    }

    /// The messages as two runs: before the wrap and after it.
    #[must_use]
    pub fn as_slices(&self) -> [&[T]; 2]
    where
        M::Cell<T>: SliceCell<T>,
    {
        self.consumer.runs(self.count)
    }

    /// Drops the first `count` messages in place and releases their slots together; more than were seen means all of them.
    ///
    /// If a drop panics, the messages before it and itself are released, the others stay.
    pub fn release(self, count: u64) {
        /// Publishes how far the drops got, also when one of them panics.
        struct Release<'c, 'a, T, M: Machine>(&'c mut Consumer<'a, T, M>);
        impl<T, M: Machine> Drop for Release<'_, '_, T, M> {
            fn drop(&mut self) {
                self.0.publish();
            }
        }
        let guard = Release(self.consumer);
        for _ in 0..count.min(self.count) {
            let cell = guard.0.slot(0);
            // The index first, so that a value whose drop panics is not dropped again.
            guard.0.head = guard.0.head.wrapping_add(1);
            // SAFETY: the slot was initialised and this end's, and the index has passed it.
            cell.with_mut(|slot| unsafe { slot.drop_in_place() });
        }
    }
}

/// The messages by value.
///
/// ```
/// use ringmem_layouts::ring::spsc::Ring;
/// let mut ring = Ring::<String, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// ["a", "b", "c"].map(|name| producer.push(name.to_owned()).unwrap());
/// let two: Vec<String> = consumer.peek(8).unwrap().into_iter().take(2).collect();
/// assert_eq!((two, consumer.len()), (vec!["a".to_owned(), "b".to_owned()], 1));
/// ```
impl<'c, 'a, T, M: Machine> IntoIterator for Chunk<'c, 'a, T, M> {
    type Item = T;
    type IntoIter = Drain<'c, Consumer<'a, T, M>>;

    fn into_iter(self) -> Self::IntoIter {
        // SAFETY: by the chunk's invariant.
        unsafe { Drain::new(self.consumer, self.count) }
    }
}

impl<T, M: Machine> Take for Consumer<'_, T, M> {
    type Item = T;
    #[inline(always)]
    unsafe fn take(&mut self) -> T {
        Self::take(self)
    }
    #[inline(always)]
    fn release(&mut self) {
        self.publish();
    }
}

/// Releases every so many messages; also when it finds the ring empty, on [`flush`](Self::flush) and on drop.
pub struct BatchConsumer<'c, 'a, T, M: Machine> {
    consumer: &'c mut Consumer<'a, T, M>,
    released: u64,
    every: u64,
}

impl<T, M: Machine> BatchConsumer<'_, '_, T, M> {
    /// Pops one value; releases its slot with its batch.
    ///
    /// # Errors
    ///
    /// [`PopError`]; what was popped before has been released.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if self.consumer.available() == 0
            && let Err(nothing) = self.consumer.more()
        {
            self.flush();
            return Err(nothing);
        }
        let value = self.consumer.take();
        if self.consumer.head.wrapping_sub(self.released) >= self.every {
            self.flush();
        }
        Ok(value)
    }

    /// Releases what was popped.
    #[inline]
    pub fn flush(&mut self) {
        // A store of what stands there already would only take the line from the producer.
        if self.released != self.consumer.head {
            self.released = self.consumer.head;
            self.consumer.publish();
        }
    }
}

impl<T, M: Machine> Drop for BatchConsumer<'_, '_, T, M> {
    fn drop(&mut self) {
        self.flush();
        self.consumer.in_batch = false;
    }
}
