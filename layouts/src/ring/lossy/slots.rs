use core::array;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::{RingMessage, Word};

const WORD: usize = size_of::<u64>();
/// Words of payload per [`Word::publish_all`], on a device a barrier to the bus.
const GROUP: usize = 8;

/// The sequence, then the payload.
pub(in crate::ring) const fn words_of<T>() -> usize {
    1 + size_of::<T>().div_ceil(WORD)
}

/// 0 means no message, except for the last index.
const fn sequence_of(index: u64) -> u64 {
    index.wrapping_add(1)
}

pub(super) struct Cells<'a, T, W> {
    // INVARIANT: `capacity` slots of `words_of::<T>()` words live here for 'a; capacity is `mask + 1`, a power of two.
    base: NonNull<W>,
    mask: u64,
    _slots: PhantomData<(&'a W, T)>,
}

impl<T, W> Clone for Cells<'_, T, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, W> Copy for Cells<'_, T, W> {}

impl<'a, T: RingMessage, W: Word> Cells<'a, T, W> {
    /// # Safety
    ///
    /// `capacity` slots of `words_of::<T>()` words at `base` live for `'a`; `capacity` is a power of two, and so many slots fit `usize`.
    pub(super) const unsafe fn new(base: NonNull<W>, capacity: u64) -> Self {
        const { assert!(size_of::<T>() > 0, "a message without bytes needs a counter, not a ring") };
        Self { base, mask: capacity - 1, _slots: PhantomData }
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    #[inline(always)]
    fn slot(&self, index: u64) -> (&'a W, &'a [W]) {
        let first = (index & self.mask) as usize * words_of::<T>();
        // SAFETY: masked, so below the capacity; valid by the invariant.
        let first = unsafe { self.base.add(first) };
        // SAFETY: it begins with the sequence.
        let sequence = unsafe { first.as_ref() };
        // SAFETY: by the invariant the payload follows; words are shared by their own accesses.
        let payload = unsafe { NonNull::slice_from_raw_parts(first.add(1), words_of::<T>() - 1).as_ref() };
        (sequence, payload)
    }

    #[inline]
    pub(super) fn write(&self, index: u64, value: &T) {
        let (sequence, payload) = self.slot(index);
        sequence.store(sequence_of(index));
        let (groups, rest) = value.as_bytes().as_chunks::<{ GROUP * WORD }>();
        let (grouped, single) = payload.split_at(groups.len() * GROUP);
        // SYNC POINT: slot overwritten. Pairs with read, which then sees this message's sequence, or a later one.
        for (words, bytes) in grouped.as_chunks::<GROUP>().0.iter().zip(groups) {
            let (values, _) = bytes.as_chunks::<WORD>();
            W::publish_all::<GROUP>(array::from_fn(|place| (&words[place], u64::from_ne_bytes(values[place]))));
        }
        for (word, bytes) in single.iter().zip(rest.chunks(WORD)) {
            let mut value = [0; WORD];
            value[..bytes.len()].copy_from_slice(bytes);
            W::publish_all([(word, u64::from_ne_bytes(value))]);
        }
    }

    /// Returns message `index`, which was published, unless overwritten.
    #[inline]
    pub(super) fn read(&self, index: u64) -> Option<T> {
        let (sequence, payload) = self.slot(index);
        let mut value = T::zeroed();
        for (word, bytes) in payload.iter().zip(value.as_bytes_mut().chunks_mut(WORD)) {
            // SYNC POINT: slot overwritten. Pairs with write.
            bytes.copy_from_slice(&word.load_acquire().to_ne_bytes()[..bytes.len()]);
        }
        (sequence.load() == sequence_of(index)).then_some(value)
    }
}
