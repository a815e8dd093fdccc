//! The end that empties slots.

use core::mem::offset_of;
use core::ptr::NonNull;

use super::full;
use crate::attach::AttachError;
use crate::ring::drain::Take;
use crate::ring::error::PopError;
use crate::ring::header::RingFlags;
use crate::ring::slots::{Slot, Slots, geometry_of_both, place};
use crate::ring::{Bells, Drain, Row, end, owner};
use crate::{Machine, RingHeader, RingMessage, SliceCell, SlotCell, Word};

/// Empties slots and releases them. One per ring.
pub struct Consumer<'a, T, M: Machine> {
    /// Where the producer says that it is open or closed.
    own: &'a RingHeader<M::Word>,
    /// Where this end's index is published.
    peer: &'a RingHeader<M::Word>,
    slots: Slots<'a, Slot<M::Word, M::Cell<T>>>,
    // INVARIANT: slots from `head` on whose flag is that of their index, in a row, are full and this end's.
    /// The next slot to empty.
    head: u64,
    /// The index that the producer knows.
    released: u64,
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
        let (header, layout, slots) = unsafe { place::<T, M>(RingFlags::FLAGGED, base, len)? };
        // SAFETY: the caller's promise; as many slots lie within `len`.
        Ok(unsafe { Self::over(header, header, slots.cast(), layout.capacity()) })
    }

    /// Attaches to a ring whose two headers lie apart: `own` is read, `peer` is written.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead, in either header.
    ///
    /// # Safety
    ///
    /// For `'a`, as many slots at `slots` as `own` says are valid and initialised, and nobody but this consumer and one producer touches them
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

    /// An end of a ring whose geometry the caller has checked already.
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
        let head = peer.consumer.head.load();
        // SAFETY: the caller's promise.
        let slots = unsafe { Slots::new(slots, capacity) };
        Self { own, peer, slots, head, released: head, announced: false }
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

    /// Messages that wait now: flags are counted, at most the capacity.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.waiting(self.capacity())
    }

    /// Whether nothing is in the ring now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_there(0)
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

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`].
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if !self.is_there(0) {
            // What a forgotten batch popped.
            self.release();
            return Err(PopError::Empty);
        }
        let value = self.take();
        self.release();
        Ok(value)
    }

    /// Pops as many values as wait and fit, and releases their slots together; how many.
    pub fn pop_slice(&mut self, values: &mut [T]) -> usize
    where
        T: Copy,
    {
        let count = self.waiting(values.len() as u64);
        for (_, value) in (0..count).zip(values) {
            *value = self.take();
        }
        self.release();
        count as usize
    }

    /// Looks at up to `most` waiting messages in place; none is taken until [`Chunk::release`].
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`], also for `most == 0`.
    pub fn peek(&mut self, most: u64) -> Result<Chunk<'_, 'a, T, M>, PopError> {
        match self.waiting(most) {
            0 => {
                self.release();
                Err(PopError::Empty)
            }
            count => Ok(Chunk { consumer: self, count }),
        }
    }

    /// The next message, seen in place; it remains the next.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`].
    pub fn front(&mut self) -> Result<&T, PopError>
    where
        M::Cell<T>: SliceCell<T>,
    {
        self.peek(1)?;
        // SAFETY: it is there and this end's until it is released, for which it takes `&mut`; the cell is plain bytes.
        Ok(self.slots.at(self.head).cell.with(|slot| unsafe { &*slot }))
    }

    /// Releases every `every` messages instead of each (at least 1).
    ///
    /// For `Copy` values only: what a forgotten batch popped is released by this consumer's next release, or when it finds nothing; without
    /// either, the next consumer of the ring pops it again.
    pub fn batch(&mut self, every: u64) -> BatchConsumer<'_, 'a, T, M>
    where
        T: Copy,
    {
        self.release();
        BatchConsumer { consumer: self, every: every.max(1) }
    }

    /// Whether the message `offset` places after the next one is there, if all before it are.
    #[inline(always)]
    #[must_use]
    pub fn is_there(&self, offset: u64) -> bool {
        let index = self.head.wrapping_add(offset);
        // SYNC POINT: slot published. Pairs with Producer::publish.
        self.slots.at(index).word.load_acquire() == full(index, self.slots.capacity())
    }

    /// Messages that wait in a row, at most `most`. A slot that was taken and not released still has its flag, but that of another lap.
    #[inline]
    fn waiting(&self, most: u64) -> u64 {
        (0..most.min(self.capacity())).take_while(|offset| self.is_there(*offset)).count() as u64
    }

    /// Takes the message at the head, which is there.
    #[inline(always)]
    fn take(&mut self) -> T {
        // SAFETY: its flag is up, which callers have acquired; advancing makes sure that it is read once.
        let value = self.slots.at(self.head).cell.with(|place| unsafe { place.read() });
        self.head = self.head.wrapping_add(1);
        value
    }

    /// Releases what was taken.
    #[inline(always)]
    fn release(&mut self) {
        // A store of what stands there already would only take the line from the producer.
        if self.released != self.head {
            self.released = self.head;
            // SYNC POINT: slot released. Pairs with Producer::refresh.
            self.peer.consumer.head.store_release(self.head);
        }
    }
}

/// For lanes that share one endpoint: each holds an equal copy of its state and looks at slots of its own, one of them stores to memory.
impl<'a, T, M: Machine> Consumer<'a, T, M> {
    /// The payload of the slots from the next one on.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self) -> Row<'a, M::Cell<T>> {
        // SAFETY: each slot has its cell there.
        unsafe { self.slots.row(self.head, offset_of!(Slot<M::Word, M::Cell<T>>, cell)) }
    }

    /// Counts `count` slots as emptied, without releasing them.
    ///
    /// # Safety
    ///
    /// So many messages in a row [are there](Self::is_there), whichever lanes have looked, and no lane reads them any more.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        self.head = self.head.wrapping_add(count);
        // The lane that stores does it for all of them.
        self.released = self.head;
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
        self.release();
        if self.announced {
            owner::close(&self.peer.consumer.owner);
        }
    }
}

/// Waiting messages, seen in place. Dropping it takes none.
pub struct Chunk<'c, 'a, T, M: Machine> {
    consumer: &'c mut Consumer<'a, T, M>,
    // INVARIANT: so many slots from the head are full, and not 0.
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
        let slot = self.consumer.slots.at(self.consumer.head.wrapping_add(offset));
        // SAFETY: full, and not released while borrowed.
        Some(slot.cell.with(|place| read(unsafe { &*place })))
    }

    /// Drops the first `count` messages in place and releases their slots together; more than were seen means all of them.
    ///
    /// If a drop panics, the messages before it and itself are released, the others stay.
    pub fn release(self, count: u64) {
        /// Releases what was dropped, also when a drop panics.
        struct Release<'c, 'a, T, M: Machine>(&'c mut Consumer<'a, T, M>);
        impl<T, M: Machine> Drop for Release<'_, '_, T, M> {
            fn drop(&mut self) {
                self.0.release();
            }
        }
        let guard = Release(self.consumer);
        for _ in 0..count.min(self.count) {
            let slot = guard.0.slots.at(guard.0.head);
            // The index first, so that a value whose drop panics is not dropped again.
            guard.0.head = guard.0.head.wrapping_add(1);
            // SAFETY: full by the chunk's invariant, and the index has passed it.
            slot.cell.with_mut(|place| unsafe { place.drop_in_place() });
        }
    }
}

/// The messages by value.
///
/// ```
/// use ringmem_layouts::ring::flagged::Ring;
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
        Self::release(self);
    }
}

/// Releases every so many messages; also when it finds the ring empty, on [`flush`](Self::flush) and on drop.
pub struct BatchConsumer<'c, 'a, T, M: Machine> {
    consumer: &'c mut Consumer<'a, T, M>,
    every: u64,
}

impl<T, M: Machine> BatchConsumer<'_, '_, T, M> {
    /// Pops one value; releases its slot with its batch.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`]; what was popped before has been released.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if !self.consumer.is_there(0) {
            self.flush();
            return Err(PopError::Empty);
        }
        let value = self.consumer.take();
        if self.consumer.head.wrapping_sub(self.consumer.released) >= self.every {
            self.flush();
        }
        Ok(value)
    }

    /// Releases what was popped.
    #[inline]
    pub fn flush(&mut self) {
        self.consumer.release();
    }
}

impl<T, M: Machine> Drop for BatchConsumer<'_, '_, T, M> {
    fn drop(&mut self) {
        self.flush();
    }
}
