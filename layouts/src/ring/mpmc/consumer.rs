//! The end that many empty.

use core::ptr::NonNull;

use super::SystemAtomics;
use crate::attach::AttachError;
use crate::ring::chunk::drop_all;
use crate::ring::error::PopError;
use crate::ring::kind::{Turns, claim, take};
use crate::ring::{Bells, RingFlags, Slot, owner};
use crate::{Machine, RingHeader, RingMessage, RmwWord, Word};

/// Claims messages and takes them. Clone it for another consumer.
pub struct Consumer<'a, T, M: Machine<Word: RmwWord>> {
    turns: Turns<'a, T, M>,
    /// Where the head was when this handle last saw it, or before.
    hint: u64,
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
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only handles of this ring in the same coherence domain touch them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller's promise.
        let turns = unsafe { Turns::from_raw(RingFlags::MPMC, base, len)? };
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
        let layout = header.geometry_of::<T>(RingFlags::MPMC)?;
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
        owner::enter(&turns.header.consumer.owner);
        Self { turns, hint: turns.header.consumer.head.load() }
    }

    pub(in crate::ring) const fn wait_words(&self) -> Bells<'a, M::Word> {
        Bells::of::<false>(self.turns.header, self.turns.header)
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

    /// Pops one value.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`].
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        let (index, _) = self.claim(1).ok_or(PopError::Empty)?;
        // SAFETY: claimed just now, not taken yet.
        Ok(unsafe { take::<T, M>(self.turns.slot(index), self.turns.taken(index)) })
    }

    /// Pops as many values as one run of messages has and `values` takes, claimed with one compare-exchange; how many.
    pub fn pop_slice(&mut self, values: &mut [T]) -> usize
    where
        T: Copy,
    {
        if values.is_empty() {
            return 0;
        }
        let Some((first, count)) = self.claim(values.len() as u64) else { return 0 };
        // SAFETY: claimed just now.
        unsafe { self.turns.take_run(first, &mut values[..count as usize]) };
        count as usize
    }

    /// Claims up to `most` messages with one compare-exchange; they are this handle's alone from now on.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`], also for `most == 0`.
    pub fn take(&mut self, most: u64) -> Result<Taken<'_, 'a, T, M>, PopError> {
        if most == 0 {
            return Err(PopError::Empty);
        }
        let (next, count) = self.claim(most).ok_or(PopError::Empty)?;
        Ok(Taken { turns: &self.turns, next, end: next.wrapping_add(count) })
    }

    #[inline(always)]
    fn claim(&mut self, most: u64) -> Option<(u64, u64)> {
        let Self { turns, hint } = self;
        let look = |head| turns.look(head, most, |index| turns.full(index));
        claim(&turns.header.consumer.head, hint, look, |index| turns.after_given_up(index))
    }
}

impl<T, M: Machine<Word: RmwWord>> Clone for Consumer<'_, T, M> {
    fn clone(&self) -> Self {
        Self::at(self.turns)
    }
}

impl<T, M: Machine<Word: RmwWord>> Drop for Consumer<'_, T, M> {
    fn drop(&mut self) {
        owner::leave(&self.turns.header.consumer.owner);
    }
}

/// Claimed messages, as an iterator. Those that are not asked for are dropped with it: nobody else can have them.
///
/// Forgetting it stalls the ring at the remaining slots: producers that reach them again find the ring full. Dropping the ring drops the
/// values.
pub struct Taken<'c, 'a, T, M: Machine> {
    turns: &'c Turns<'a, T, M>,
    // INVARIANT: indices from `next` to `end` are claimed by this handle, full and not taken.
    next: u64,
    end: u64,
}

// SAFETY: it is handed `T`s; its slots are its own.
unsafe impl<T: Send, M: Machine> Send for Taken<'_, '_, T, M> {}

impl<T, M: Machine> Iterator for Taken<'_, '_, T, M> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.next == self.end {
            return None;
        }
        let index = self.next;
        // The index first, so that nothing is taken twice.
        self.next = index.wrapping_add(1);
        // SAFETY: by the invariant.
        Some(unsafe { take::<T, M>(self.turns.slot(index), self.turns.taken(index)) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end.wrapping_sub(self.next) as usize;
        (left, Some(left))
    }
}

impl<T, M: Machine> ExactSizeIterator for Taken<'_, '_, T, M> {}

impl<T, M: Machine> Drop for Taken<'_, '_, T, M> {
    fn drop(&mut self) {
        drop_all(|| self.next().is_some());
    }
}
