//! The end that one empties.

use core::ptr::NonNull;

use super::SystemAtomics;
use crate::attach::AttachError;
use crate::ring::drain::{Drain, Take};
use crate::ring::error::PopError;
use crate::ring::turns::{Turns, take};
use crate::ring::{Bells, RingFlags, Slot, end, owner};
use crate::{Machine, RingHeader, RingMessage, RmwWord, SliceCell, SlotCell, Word};

/// Empties slots and releases them. One per ring.
pub struct Consumer<'a, T, M: Machine<Word: RmwWord>> {
    turns: Turns<'a, T, M>,
    // INVARIANT: messages before `head` are taken and no other consumer takes any; slots from `released` to `head` still say full, or were
    // given up.
    head: u64,
    released: u64,
}

// SAFETY: a consumer is handed `T`s, and its words are shared by their own accesses.
unsafe impl<T: Send, M: Machine<Word: RmwWord>> Send for Consumer<'_, T, M> {}

impl<'a, T, M: Machine<Word: RmwWord>> Consumer<'a, T, M> {
    /// Attaches to a ring in one piece of memory: header, then slots. Looks at every slot once.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only this consumer and producers of this ring in the same coherence
    /// domain touch them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller's promise.
        let turns = unsafe { Turns::from_raw(RingFlags::MPSC, base, len)? };
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::at(turns) })
    }

    /// Attaches to a header and to slots that lie where the caller says, made by [`Slot::vacant`] or written by `format`. Looks at
    /// every slot once.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// For `'a`, as many slots at `slots` as the header says are valid, and only handles of this ring in the same coherence domain touch them.
    pub unsafe fn new(header: &'a RingHeader<M::Word>, slots: NonNull<Slot<M::Word, M::Cell<T>>>) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        let layout = header.geometry_of::<T>(RingFlags::MPSC)?;
        // SAFETY: the caller's promise; the layout's capacity is a power of two that fits memory.
        let turns = unsafe { Turns::new(header, slots, layout.capacity()) }.checked()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::at(turns) })
    }

    /// As [`from_raw`](Self::from_raw), for a ring that a CPU and a GPU share.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), but producers may be in every coherence domain that the proof speaks of.
    pub unsafe fn from_raw_across(base: NonNull<u8>, len: u64, _proof: SystemAtomics) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller's promise; the proof makes one domain of them.
        unsafe { Self::from_raw(base, len) }
    }

    /// # Safety
    ///
    /// The ring's only consumer.
    pub(super) unsafe fn at(turns: Turns<'a, T, M>) -> Self {
        owner::enter(&turns.header.consumer.owner);
        let head = turns.header.consumer.head.load();
        Self { turns, head, released: head }
    }

    pub(in crate::ring) const fn bells(&self) -> Bells<'a, M::Word> {
        end::of_consumer(self.turns.header, self.turns.header)
    }

    /// Slots in all.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.turns.capacity()
    }

    /// Messages in the ring about now, at most the capacity.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.turns.len()
    }

    /// Whether nothing is in the ring about now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots that are free about now.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity() - self.len()
    }

    /// Whether no slot is free about now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Whether there were producers and none is left; what they published can still be popped.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        owner::is_closed(&self.turns.header.producer.owner)
    }

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`].
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if !self.is_there() {
            return Err(PopError::Empty);
        }
        let value = self.take();
        if self.released.wrapping_add(1) == self.head {
            // Nothing else is pending, as nearly always.
            self.release_one();
            self.publish();
        } else {
            self.release();
        }
        Ok(value)
    }

    /// Pops as many values as wait in a row and fit, and releases their slots; how many.
    pub fn pop_slice(&mut self, values: &mut [T]) -> usize
    where
        T: Copy,
    {
        if values.is_empty() || !self.is_there() {
            return 0;
        }
        let count = self.turns.run(self.head, values.len() as u64, |index| self.turns.full(index));
        self.release();
        let mut values = &mut values[..count as usize];
        for (index, slots) in self.turns.runs(self.head, count) {
            let taken = self.turns.taken(index);
            let (now, later) = values.split_at_mut(slots.len());
            values = later;
            for (slot, value) in slots.iter().zip(now) {
                // SAFETY: its word says full, which `run` has acquired, and this consumer is the only one; each slot once.
                *value = unsafe { take::<T, M>(slot, taken) };
            }
        }
        self.head = self.head.wrapping_add(count);
        self.released = self.head;
        self.publish();
        count as usize
    }

    /// Returns a chunk of up to `most` consecutive messages in place; only [`Chunk::release`] takes them. The chunk ends at a slot that a producer
    /// gave up, even if messages follow it; the next chunk begins after that slot.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`], also for `most == 0`.
    pub fn peek(&mut self, most: u64) -> Result<Chunk<'_, 'a, T, M>, PopError> {
        if most == 0 || !self.is_there() {
            return Err(PopError::Empty);
        }
        let count = self.turns.run(self.head, most, |index| self.turns.full(index));
        Ok(Chunk { consumer: self, count })
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
        Ok(self.turns.slot(self.head).cell.with(|slot| unsafe { &*slot }))
    }

    /// Releases every `every` messages instead of each (at least 1).
    ///
    /// For `Copy` values only: what a forgotten batch took is released with the consumer's next release, or when it finds nothing.
    pub fn batch(&mut self, every: u64) -> BatchConsumer<'_, 'a, T, M>
    where
        T: Copy,
    {
        BatchConsumer { consumer: self, every: every.max(1) }
    }

    /// Whether a message is at the head, once slots that were given up are passed over.
    #[inline(always)]
    fn is_there(&mut self) -> bool {
        loop {
            // SYNC POINT: slot published. Pairs with the producers' stores of it.
            let word = self.turns.slot(self.head).word.load_acquire();
            if word == self.turns.full(self.head) {
                return true;
            }
            if self.turns.is_before(word, self.turns.full(self.head)) {
                // What a forgotten batch took: a producer that waits for those slots fills no others.
                if self.released != self.head {
                    self.release();
                }
                return false;
            }
            // What was given up is free for the next lap already: released in order, so that nothing that is taken is released as it.
            self.release();
            self.head = self.turns.after_given_up(self.head);
            self.released = self.head;
            self.publish();
        }
    }

    /// Takes the message at the head, which is there.
    #[inline(always)]
    fn take(&mut self) -> T {
        // SAFETY: its word says full, which callers have acquired; advancing makes sure that it is read once.
        let value = self.turns.slot(self.head).cell.with(|place| unsafe { place.read() });
        self.head = self.head.wrapping_add(1);
        value
    }

    /// Releases what was taken.
    #[inline(always)]
    fn release(&mut self) {
        while self.released != self.head {
            self.release_one();
        }
        self.publish();
    }

    /// Releases the first slot of those that were taken.
    #[inline(always)]
    fn release_one(&mut self) {
        // SYNC POINT: slot released. Pairs with Turns::run.
        self.turns.slot(self.released).word.store_release(self.turns.taken(self.released));
        self.released = self.released.wrapping_add(1);
    }

    /// For `len` and for batches that ask whether to hurry; slots are handed over by their words.
    #[inline(always)]
    fn publish(&self) {
        self.turns.header.consumer.head.store(self.head);
    }
}

impl<T, M: Machine<Word: RmwWord>> Drop for Consumer<'_, T, M> {
    fn drop(&mut self) {
        self.release();
        owner::leave(&self.turns.header.consumer.owner);
    }
}

/// Waiting messages, seen in place. Dropping it takes none.
pub struct Chunk<'c, 'a, T, M: Machine<Word: RmwWord>> {
    consumer: &'c mut Consumer<'a, T, M>,
    // INVARIANT: so many slots from the head were full when they were acquired, and not 0.
    count: u64,
}

impl<T, M: Machine<Word: RmwWord>> Chunk<'_, '_, T, M> {
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
        let slot = self.consumer.turns.slot(self.consumer.head.wrapping_add(offset));
        // SAFETY: full, and not released while borrowed.
        Some(slot.cell.with(|place| read(unsafe { &*place })))
    }

    /// Drops the first `count` messages in place and releases their slots; more than were seen means all of them.
    ///
    /// If a drop panics, the messages before it and itself are released, the others stay.
    pub fn release(self, count: u64) {
        /// Releases what was dropped, also when a drop panics.
        struct Release<'c, 'a, T, M: Machine<Word: RmwWord>>(&'c mut Consumer<'a, T, M>);
        impl<T, M: Machine<Word: RmwWord>> Drop for Release<'_, '_, T, M> {
            fn drop(&mut self) {
                self.0.release();
            }
        }
        let guard = Release(self.consumer);
        for _ in 0..count.min(self.count) {
            let slot = guard.0.turns.slot(guard.0.head);
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
/// use ringmem_layouts::ring::mpsc::Ring;
/// let mut ring = Ring::<String, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// ["a", "b", "c"].map(|name| producer.push(name.to_owned()).unwrap());
/// let two: Vec<String> = consumer.peek(8).unwrap().into_iter().take(2).collect();
/// assert_eq!((two, consumer.len()), (vec!["a".to_owned(), "b".to_owned()], 1));
/// ```
impl<'c, 'a, T, M: Machine<Word: RmwWord>> IntoIterator for Chunk<'c, 'a, T, M> {
    type Item = T;
    type IntoIter = Drain<'c, Consumer<'a, T, M>>;

    fn into_iter(self) -> Self::IntoIter {
        // SAFETY: by the chunk's invariant.
        unsafe { Drain::new(self.consumer, self.count) }
    }
}

impl<T, M: Machine<Word: RmwWord>> Take for Consumer<'_, T, M> {
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
pub struct BatchConsumer<'c, 'a, T, M: Machine<Word: RmwWord>> {
    consumer: &'c mut Consumer<'a, T, M>,
    every: u64,
}

impl<T, M: Machine<Word: RmwWord>> BatchConsumer<'_, '_, T, M> {
    /// Pops one value; releases its slot with its batch.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`]; what was popped before has been released.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if !self.consumer.is_there() {
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

impl<T, M: Machine<Word: RmwWord>> Drop for BatchConsumer<'_, '_, T, M> {
    fn drop(&mut self) {
        self.flush();
    }
}
