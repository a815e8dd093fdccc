use crate::ring::kind::Turns;
use crate::ring::value;
use crate::{Machine, RmwWord, SlotCell, Word};

use super::PushError;
use super::producer::claim_free;

/// Claimed slots, to be written in order; each write publishes its slot. Dropping the grant gives up unwritten slots. A grant that is forgotten, or whose
/// process dies, leaves them claimed, and the ring stops there.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mpmc::Ring;
///
/// let ring = Ring::<u32, 8>::new();
/// let (mut producer, mut consumer) = ring.split();
/// let mut grant = producer.reserve(3)?;
/// grant.fill([1, 2]);
/// grant.commit(); // gives up the third slot
/// assert_eq!(consumer.take(8).unwrap().collect::<Vec<_>>(), [1, 2]);
/// # Ok::<(), ringmem::ring::ReserveError>(())
/// ```
pub struct Grant<'p, 'a, T, M: Machine<Word: RmwWord>> {
    turns: &'p Turns<'a, T, M>,
    // INVARIANT: `first` <= `next` <= `end`; indices from `next` to `end` are claimed, and neither written nor given up. Within `write`, `next` is written,
    // too.
    next: u64,
    end: u64,
    first: u64,
}

// SAFETY: it moves `T`s; its slots are its own.
unsafe impl<T: Send, M: Machine<Word: RmwWord>> Send for Grant<'_, '_, T, M> {}

impl<'p, 'a, T, M: Machine<Word: RmwWord>> Grant<'p, 'a, T, M> {
    pub(super) fn new(turns: &'p Turns<'a, T, M>, first: u64, count: usize) -> Self {
        Self { turns, next: first, end: first.wrapping_add(count as u64), first }
    }

    /// Returns the number of slots granted.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.end.wrapping_sub(self.first) as usize
    }

    /// Returns whether the grant is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of slots written.
    #[must_use]
    pub const fn written(&self) -> usize {
        self.next.wrapping_sub(self.first) as usize
    }

    /// Writes the next slot and publishes it.
    ///
    /// # Errors
    ///
    /// The value, if all are written.
    #[inline]
    pub fn write(&mut self, value: T) -> Result<(), T> {
        if self.next == self.end {
            return Err(value);
        }
        let index = self.next;
        self.next = index.wrapping_add(1);
        let slot = self.turns.slot(index);
        // SAFETY: by the invariant claimed and not written.
        slot.cell.with_mut(|place| unsafe { value::write(place, value) });
        // SYNC POINT: slot published. Pairs with Turns::look and run, Mpsc::next and seen, and ManyProducer::evict.
        slot.word.store_release(self.turns.full(index));
        Ok(())
    }

    /// Writes values while slots remain; returns their number.
    pub fn fill(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let before = self.written();
        let mut values = values.into_iter();
        while self.next != self.end {
            let Some(value) = values.next() else { break };
            let _ = self.write(value);
        }
        self.written() - before
    }

    /// Gives up unwritten slots, as drop does.
    pub fn commit(self) {}
}

impl<T, M: Machine<Word: RmwWord>> Drop for Grant<'_, '_, T, M> {
    fn drop(&mut self) {
        while self.next != self.end {
            give_up(self.turns, self.next);
            self.next = self.next.wrapping_add(1);
        }
    }
}

fn give_up<T, M: Machine<Word: RmwWord>>(turns: &Turns<'_, T, M>, index: u64) {
    // SYNC POINT: slot released. Pairs with Turns::look and run: the next lap's producer comes after this claim.
    turns.slot(index).word.store_release(turns.taken(index));
}

/// Claims several slots at a time and publishes when all are written or the consumers wait for the first of them, on [`flush`](Self::flush) and on drop. Flush
/// before you wait.
///
/// Claimed slots block later messages of other producers, so `flush` and drop give up unused ones.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mpmc::Ring;
///
/// let ring = Ring::<u32, 8>::new();
/// let (mut producer, mut consumer) = ring.split();
/// let mut batch = producer.batch(4);
/// (1..=3).try_for_each(|number| batch.push(number))?;
/// batch.flush(); // gives up the fourth slot
/// assert_eq!(consumer.pop_slice(&mut [0; 8]), 3);
/// # Ok::<(), ringmem::ring::PushError<u32>>(())
/// ```
pub struct BatchProducer<'p, 'a, T, M: Machine<Word: RmwWord>> {
    turns: &'p Turns<'a, T, M>,
    // INVARIANT: indices from `published` to `end` are claimed and not published; those before `next` are written. Within `flush`, those after them are given
    // up.
    published: u64,
    next: u64,
    end: u64,
    /// The producer's own: where it claims next.
    hint: &'p mut u64,
    /// Slots of a claim, at least 1.
    every: usize,
}

// SAFETY: it moves `T`s; its slots are its own.
unsafe impl<T: Send, M: Machine<Word: RmwWord>> Send for BatchProducer<'_, '_, T, M> {}

impl<'p, 'a, T, M: Machine<Word: RmwWord>> BatchProducer<'p, 'a, T, M> {
    pub(super) fn new(turns: &'p Turns<'a, T, M>, hint: &'p mut u64, every: usize) -> Self {
        Self { turns, published: 0, next: 0, end: 0, hint, every }
    }

    /// Pushes one value; publishes it with its batch.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`] with the value; earlier messages are published.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T, M::Corrupt>> {
        if self.next == self.end {
            let Some((first, count)) = claim_free(self.turns, self.hint, self.every) else { return Err(PushError::Full(value)) };
            (self.published, self.next, self.end) = (first, first, first.wrapping_add(count as u64));
        }
        let slot = self.turns.slot(self.next);
        // SAFETY: by the invariant the indices from `next` to `end` are claimed and not written, and `next` is below `end` here.
        slot.cell.with_mut(|place| unsafe { value::write(place, value) });
        self.next = self.next.wrapping_add(1);
        // Relaxed: a hint only.
        if self.next == self.end || self.turns.header.consumer.head.load() == self.published {
            self.publish();
        }
        Ok(())
    }

    /// Publishes pending messages and gives up unused slots.
    pub fn flush(&mut self) {
        self.publish();
        while self.end != self.next {
            give_up(self.turns, self.next);
            self.next = self.next.wrapping_add(1);
        }
        self.published = self.next;
    }

    #[inline(always)]
    fn publish(&mut self) {
        while self.published != self.next {
            // SYNC POINT: slot published. Pairs with Turns::look and run, Mpsc::next and seen, and ManyProducer::evict.
            self.turns.slot(self.published).word.store_release(self.turns.full(self.published));
            self.published = self.published.wrapping_add(1);
        }
    }
}

impl<T, M: Machine<Word: RmwWord>> Drop for BatchProducer<'_, '_, T, M> {
    fn drop(&mut self) {
        self.flush();
    }
}
