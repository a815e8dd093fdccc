//! The end that many fill.

use core::ptr::NonNull;

use super::{BatchProducer, Grant, SystemAtomics};
use crate::attach::AttachError;
use crate::ring::error::{PushError, ReserveError};
use crate::ring::kind::{Look, Turns, claim, fill, take};
use crate::ring::{Bells, RingFlags, Slot, owner};
use crate::{Machine, RingHeader, RingMessage, RmwWord, Word};

/// Claims slots, fills and publishes them. Clone it for another producer. `KIND` is MPMC or MPSC.
pub struct Producer<'a, T, M: Machine<Word: RmwWord>, const KIND: u64> {
    turns: Turns<'a, T, M>,
    /// Where the tail was when this handle last saw it, or before.
    hint: u64,
}

// SAFETY: a producer hands over `T`s, and its words are shared by their own accesses.
unsafe impl<T: Send, M: Machine<Word: RmwWord>, const KIND: u64> Send for Producer<'_, T, M, KIND> {}

impl<'a, T, M: Machine<Word: RmwWord>, const KIND: u64> Producer<'a, T, M, KIND> {
    /// Attaches to a ring in one piece of memory: header, then slots. Looks at every slot once.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only handles of this ring in the same coherence domain touch them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller's promise.
        let turns = unsafe { Turns::from_raw(RingFlags::from_bits_retain(KIND), base, len)? };
        Ok(Self::at(turns))
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
        let layout = header.geometry_of::<T>(RingFlags::from_bits_retain(KIND))?;
        // SAFETY: the caller's promise; the layout's capacity is a power of two that fits memory.
        let turns = unsafe { Turns::new(header, slots, layout.capacity()) }.checked()?;
        Ok(Self::at(turns))
    }

    /// As [`from_raw`](Self::from_raw), for a ring that a CPU and a GPU share.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead.
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), but handles may be in every coherence domain that the proof speaks of.
    pub unsafe fn from_raw_across(base: NonNull<u8>, len: u64, _proof: SystemAtomics) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller's promise; the proof makes one domain of them.
        unsafe { Self::from_raw(base, len) }
    }

    pub(in crate::ring) fn at(turns: Turns<'a, T, M>) -> Self {
        owner::enter(&turns.header.producer.owner);
        Self { turns, hint: turns.header.producer.tail.load() }
    }

    pub(in crate::ring) const fn wait_words(&self) -> Bells<'a, M::Word> {
        Bells::of::<true>(self.turns.header, self.turns.header)
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

    /// Whether no slot is free about now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Slots that are free about now.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity() - self.len()
    }

    /// Whether there were consumers and none is left.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        owner::is_closed(&self.turns.header.consumer.owner)
    }

    /// Pushes one value.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`] with the value.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        let Some((index, _)) = self.claim(1) else { return Err(PushError::Full(value)) };
        // SAFETY: claimed just now, nothing written.
        unsafe { fill::<T, M>(self.turns.slot(index), self.turns.full(index), value) };
        Ok(())
    }

    /// Pushes as many of `values` as one run of free slots takes, from the first, claimed with one compare-exchange; how many.
    ///
    /// Fewer than all is no promise that the ring is full now.
    pub fn push_slice(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        if values.is_empty() {
            return 0;
        }
        let Some((first, count)) = self.claim(values.len() as u64) else { return 0 };
        let mut values = &values[..count as usize];
        for (index, slots) in self.turns.runs(first, count) {
            let full = self.turns.full(index);
            let (now, later) = values.split_at(slots.len());
            values = later;
            for (slot, value) in slots.iter().zip(now) {
                // SAFETY: claimed just now, each slot once.
                unsafe { fill::<T, M>(slot, full, *value) };
            }
        }
        count as usize
    }

    /// Claims `count` slots, to be written one after the other.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]: not now, or never.
    pub fn reserve(&mut self, count: u64) -> Result<Grant<'_, 'a, T, M>, ReserveError> {
        if count > self.capacity() {
            return Err(ReserveError::TooLarge { capacity: self.capacity() });
        }
        let Self { turns, hint } = self;
        let mut free = 0;
        let claimed = if count == 0 {
            Some((0, 0))
        } else {
            let look = |tail| match turns.look(tail, count, |index| turns.free(index)) {
                Look::Claim(found) if found < count => {
                    if turns.header.producer.tail.load() != tail {
                        // Others claimed from here on: what looks free is not yet written, and behind it they may have written.
                        return Look::Passed;
                    }
                    free = found;
                    Look::NotYet
                }
                other => other,
            };
            claim(&turns.header.producer.tail, hint, look, |index| index.wrapping_add(1))
        };
        let Some((first, count)) = claimed else { return Err(ReserveError::Full { free }) };
        Ok(Grant::new(turns, first, count))
    }

    /// Claims up to `every` slots at a time (at least 1) and publishes them together.
    pub fn batch(&mut self, every: u64) -> BatchProducer<'_, 'a, T, M> {
        BatchProducer::new(&self.turns, &mut self.hint, every.max(1))
    }

    /// Claims from 1 up to `most` slots, in a row and free.
    #[inline(always)]
    fn claim(&mut self, most: u64) -> Option<(u64, u64)> {
        claim_free(&self.turns, &mut self.hint, most)
    }
}

impl<T, M: Machine<Word: RmwWord>> Producer<'_, T, M, { RingFlags::MPMC.bits() }> {
    /// Takes the oldest message, if the ring is full of messages and no consumer has it: what stands where the next one is to go.
    pub fn evict(&mut self) -> Option<T> {
        let turns = &self.turns;
        let oldest = turns.header.producer.tail.load().wrapping_sub(turns.capacity());
        // SYNC POINT: slot published. Pairs with the producers' stores of it.
        if turns.slot(oldest).word.load_acquire() != turns.full(oldest) {
            return None;
        }
        let mut head = oldest;
        while let Err(found) = turns.header.consumer.head.compare_exchange(head, oldest.wrapping_add(1)) {
            // Whatever stands before the oldest was given up: its slot was claimed again, or the tail would not be where it is.
            if oldest.wrapping_sub(found) as i64 <= 0 {
                return None;
            }
            head = found;
        }
        // SAFETY: claimed just now as a consumer does, when its slot was full.
        Some(unsafe { take::<T, M>(turns.slot(oldest), turns.taken(oldest)) })
    }
}

/// Claims from 1 up to `most` slots of a ring, in a row and free.
#[inline(always)]
pub(super) fn claim_free<T, M: Machine<Word: RmwWord>>(turns: &Turns<'_, T, M>, hint: &mut u64, most: u64) -> Option<(u64, u64)> {
    claim(&turns.header.producer.tail, hint, |tail| turns.look(tail, most, |index| turns.free(index)), |index| index.wrapping_add(1))
}

impl<T, M: Machine<Word: RmwWord>, const KIND: u64> Clone for Producer<'_, T, M, KIND> {
    fn clone(&self) -> Self {
        Self::at(self.turns)
    }
}

impl<T, M: Machine<Word: RmwWord>, const KIND: u64> Drop for Producer<'_, T, M, KIND> {
    fn drop(&mut self) {
        owner::leave(&self.turns.header.producer.owner);
    }
}
