use core::hint::cold_path;
use core::ptr::NonNull;

use super::error::PushError;
use super::header::used;
use super::kind::{InPlace, OneProducer};
use super::port::Port;
use super::slots::{Slots, geometry_of_both, place};
use super::{RingFlags, Row, WaitWords};
use crate::attach::{AttachError, Corrupt, Corruption};
use crate::{Machine, RingHeader, RingMessage, Word};

/// Fills slots and publishes them. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::{PushError, Ring};
///
/// let mut ring = Ring::<u32, 2>::new();
/// let (mut producer, consumer) = ring.split();
/// producer.push(1)?;
/// producer.push(2)?;
/// assert_eq!(producer.push(3), Err(PushError::Full(3)));
/// assert_eq!((producer.len(), consumer.is_full()), (2, true));
/// # Ok::<(), PushError<u32>>(())
/// ```
pub struct Producer<'a, K: OneProducer<T, M>, T, M: Machine> {
    pub(super) state: K::Filling,
    pub(super) port: Port<'a, M::Word, true>,
    pub(super) slots: Slots<'a, K::Slot>,
    // INVARIANT: end - tail <= capacity, wrapping; the slots from tail to end are this end's.
    pub(super) tail: u64,
    /// The consumer's index as last polled, plus the capacity: one comparison finds a free slot.
    pub(super) end: u64,
}

// SAFETY: it moves `T`s; words have their own operations.
unsafe impl<K: OneProducer<T, M>, T: Send, M: Machine> Send for Producer<'_, K, T, M> {}

impl<'a, K: OneProducer<T, M>, T, M: Machine> Producer<'a, K, T, M> {
    /// Attaches to a header followed by its slots. Reads every slot once if slots have flags.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only this producer and one consumer access them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
        M: Machine<Corrupt = Corrupt>,
    {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only ends of the ring access them, so
        // the header only as words.
        let (header, layout, slots) = unsafe { place::<T, M>(K::FLAGS, base, len)? };
        // SAFETY: the caller promises the only producer of a valid ring; `place` checked that its slots lie within `len`, and that the
        // capacity is a power of two.
        unsafe { Self::over(header, header, slots.cast(), layout.capacity()) }.map_err(AttachError::Corrupt)
    }

    /// Like [`from_raw`](Self::from_raw), with two headers: `own` is polled, `peer` is written.
    ///
    /// # Errors
    ///
    /// [`AttachError`], for either header.
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), for both headers and as many slots at `slots` as `own` says.
    pub unsafe fn new(own: &'a RingHeader<M::Word>, peer: &'a RingHeader<M::Word>, slots: NonNull<K::Slot>) -> Result<Self, AttachError>
    where
        T: RingMessage,
        M: Machine<Corrupt = Corrupt>,
    {
        let layout = geometry_of_both::<T, _>(K::FLAGS, own, peer)?;
        // SAFETY: the caller promises the only producer, and as many valid slots as `own` says; the geometry was checked, so `capacity` is
        // the ring's.
        unsafe { Self::over(own, peer, slots, layout.capacity()) }.map_err(AttachError::Corrupt)
    }

    /// Attaches without checking the geometry.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), for any `T` whose published slots are initialised; `capacity` is the ring's, a power of two that fits `usize`.
    pub unsafe fn over(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<K::Slot>,
        capacity: u64,
    ) -> Result<Self, Corrupt> {
        // SAFETY: the caller promises `capacity` valid slots for `'a`, a power of two that fits `usize`.
        let slots = unsafe { Slots::new(slots, capacity) };
        let (tail, head) = K::indices_to_fill(own, peer, &slots);
        used(head, tail, capacity)?;
        Ok(Self { port: Port::new(own, peer), slots, tail, end: head.wrapping_add(capacity), state: K::filling(tail) })
    }

    /// Marks this end as open, until it is dropped.
    #[must_use]
    pub fn announce(mut self) -> Self {
        self.port.announce();
        self
    }

    /// Lets the drop access nothing, because the ring's memory may be gone: in a forked process, which does not have a driver's memory.
    #[doc(hidden)]
    pub fn abandon(&mut self) {
        self.port.abandon();
        self.state = K::filling(self.tail);
    }

    /// Returns whether the announced consumer was dropped.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.port.is_disconnected()
    }

    pub(super) const fn wait_words(&self) -> WaitWords<'a, M::Word> {
        self.port.wait_words()
    }

    /// Returns the number of messages, including an unfinished batch; at most the capacity.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.polled()).min(self.slots.capacity()) as usize
    }

    /// Returns whether the ring is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether no slot is free.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Returns the kind of ring.
    #[must_use]
    pub const fn kind(&self) -> RingFlags {
        K::FLAGS
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.slots.capacity() as usize
    }

    /// Returns the next index to fill.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the slots known to be free; [`refresh`](Self::refresh) polls.
    #[must_use]
    #[inline(always)]
    pub const fn free(&self) -> usize {
        self.end.wrapping_sub(self.tail) as usize
    }

    /// Polls the consumer's index; returns the number of free slots.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; this end keeps its last index.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, M::Corrupt> {
        let head = self.polled();
        self.accepted(head).or_else(|corrupt| M::Corrupt::found(corrupt, self.free()))
    }

    /// Pushes one value and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    #[doc(alias("try_push", "enqueue"))]
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), PushError<T, M::Corrupt>> {
        if self.free() == 0 {
            cold_path();
            match K::room(self) {
                Ok(0) => return Err(PushError::Full(value)),
                Ok(_) => {}
                Err(corrupt) => return Err(PushError::Corrupt(value, corrupt)),
            }
        }
        K::fill(self, value);
        K::publish(self);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn polled(&self) -> u64 {
        // SYNC POINT: slot released. Pairs with Consumer's release.
        self.port.own.consumer.head.load_acquire()
    }

    #[inline(always)]
    pub(super) fn accepted(&mut self, head: u64) -> Result<usize, Corrupt> {
        let used = used(head, self.tail, self.slots.capacity())?;
        self.end = head.wrapping_add(self.slots.capacity());
        Ok((self.slots.capacity() - used) as usize)
    }
}

#[doc(hidden)]
impl<'a, K: OneProducer<T, M> + InPlace, T, M: Machine> Producer<'a, K, T, M> {
    /// Returns the consumer's index in memory. For lanes with equal copies of one end; one lane polls and publishes.
    #[inline(always)]
    #[must_use]
    pub fn poll(&self) -> u64 {
        self.polled()
    }

    /// Counts no slot as free until the next index is accepted. Lanes that attached may have read different indices of the consumer, and must
    /// decide alike: the first message polls for all of them. Returns the number of free slots, 0.
    ///
    /// # Errors
    ///
    /// None occurs; the index is accepted like a polled one.
    #[inline(always)]
    pub fn assume_full(&mut self) -> Result<usize, Corrupt> {
        self.accepted(self.tail.wrapping_sub(self.slots.capacity()))
    }

    /// Returns the published messages that the consumer has not popped, at most the capacity: a figure, from a load without ordering. This end
    /// keeps nothing of it.
    #[must_use]
    #[inline(always)]
    pub fn unread(&self) -> usize {
        self.tail.wrapping_sub(self.port.own.consumer.head.load()).min(self.slots.capacity()) as usize
    }

    /// Accepts a polled index; returns the number of free slots.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing changes.
    ///
    /// # Safety
    ///
    /// `head` came from [`poll`](Self::poll) on this ring, and a barrier ordered the polling lane's load before this lane's accesses.
    #[inline(always)]
    pub unsafe fn accept(&mut self, head: u64) -> Result<usize, Corrupt> {
        self.accepted(head)
    }

    /// Returns the payload from the next slot on.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self) -> Row<'a, M::Cell<T>> {
        // SAFETY: each slot has its cell at `Kind::CELL`.
        unsafe { self.slots.row(self.tail, K::CELL) }
    }

    /// Returns the payload `offset` slots after the next.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self, offset: u64) -> &'a M::Cell<T> {
        K::cell(self.slots.at(self.tail.wrapping_add(offset)))
    }
}

impl<K: OneProducer<T, M>, T, M: Machine> Drop for Producer<'_, K, T, M> {
    fn drop(&mut self) {
        K::publish_deferred(self);
    }
}
