use core::ptr::NonNull;

use super::SystemAtomics;
use crate::attach::AttachError;
use crate::ring::kind::Turns;
use crate::ring::{RingFlags, Slot, WaitWords, owner};
use crate::{Machine, RingHeader, RingMessage, RmwWord, Word};

/// One of many at an end: a producer if `FILLS`, else a consumer. Clone it for another. `KIND` is MPMC or MPSC.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::mpmc::{Handle, Ring};
///
/// fn used<const KIND: u64, const FILLS: bool>(handle: &Handle<'_, u32, Local, KIND, FILLS>) -> usize {
///     100 * handle.len() / handle.capacity()
/// }
///
/// let ring = Ring::<u32, 4>::new();
/// let (mut producer, consumer) = ring.split();
/// producer.push_slice(&[1, 2, 3]);
/// assert_eq!((used(&producer), used(&consumer)), (75, 75));
/// ```
pub struct Handle<'a, T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool> {
    pub(in crate::ring) turns: Turns<'a, T, M>,
    /// A current or past value of the end's index.
    pub(super) hint: u64,
}

// SAFETY: it moves `T`s; words have their own operations.
unsafe impl<T: Send, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool> Send for Handle<'_, T, M, KIND, FILLS> {}

impl<'a, T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool> Handle<'a, T, M, KIND, FILLS> {
    /// Attaches to a header followed by its slots. Reads every slot once.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only handles of this ring in one coherence domain access them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only handles of this ring in one domain
        // access them.
        let turns = unsafe { Turns::from_raw(RingFlags::from_bits_retain(KIND), base, len)? };
        Ok(Self::at(turns))
    }

    /// Like [`from_raw`](Self::from_raw), with separate slots, from [`Slot::vacant`] or `format`.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// For `'a`, as many slots at `slots` as the header says are valid, and only handles of this ring in one coherence domain access them.
    pub unsafe fn new(header: &'a RingHeader<M::Word>, slots: NonNull<Slot<M::Word, M::Cell<T>>>) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        let layout = header.geometry_of::<T>(RingFlags::from_bits_retain(KIND))?;
        // SAFETY: the caller promises as many valid slots for `'a` as the header says, shared by handles of this ring only; `geometry_of`
        // checked that this is a power of two.
        let turns = unsafe { Turns::new(header, slots, layout.capacity()) }.checked()?;
        Ok(Self::at(turns))
    }

    /// Like [`from_raw`](Self::from_raw), between CPU and GPU.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), but handles may be in every domain that the proof covers.
    pub unsafe fn from_raw_across(base: NonNull<u8>, len: u64, _proof: SystemAtomics) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only handles of this ring access them. Handles may be in
        // domains that the proof covers; native atomics make these one domain.
        unsafe { Self::from_raw(base, len) }
    }

    pub(in crate::ring) fn at(turns: Turns<'a, T, M>) -> Self {
        let (header, handle) = (turns.header, |hint| Self { turns, hint });
        if FILLS {
            owner::enter(&header.producer.owner);
            handle(header.producer.tail.load())
        } else {
            owner::enter(&header.consumer.owner);
            handle(header.consumer.head.load())
        }
    }

    pub(in crate::ring) const fn wait_words(&self) -> WaitWords<'a, M::Word> {
        WaitWords::of::<FILLS>(self.turns.header, self.turns.header)
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.turns.capacity() as usize
    }

    /// Returns the approximate number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Returns whether the ring is approximately empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the ring is approximately full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Returns the approximate number of free slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Returns whether all handles of the other end were dropped; their messages remain.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        let header = self.turns.header;
        owner::is_closed(if FILLS { &header.consumer.owner } else { &header.producer.owner })
    }
}

impl<T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool> Clone for Handle<'_, T, M, KIND, FILLS> {
    fn clone(&self) -> Self {
        Self::at(self.turns)
    }
}

impl<T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool> Drop for Handle<'_, T, M, KIND, FILLS> {
    fn drop(&mut self) {
        let header = self.turns.header;
        owner::leave(if FILLS { &header.producer.owner } else { &header.consumer.owner });
    }
}
