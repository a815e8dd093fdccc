use core::ptr::NonNull;

use super::error::PopError;
use super::header::used;
use super::kind::{InPlace, Indexed, OneConsumer, OneProducer};
use super::port::Port;
use super::slots::{Slots, geometry_of_both, place};
use super::{RingFlags, Row, WaitWords};
use crate::attach::{AttachError, Corrupt};
use crate::{Machine, RingHeader, RingMessage, SliceCell, SlotCell};

/// Empties slots and releases them. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::spsc::{PopError, Ring};
///
/// let mut ring = Ring::<u32, 4>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push_slice(&[1, 2, 3]).unwrap();
/// assert_eq!(consumer.pop(), Ok(1));
/// assert_eq!(consumer.peek(4)?.as_slices().concat(), [2, 3]); // in place; dropping the chunk releases nothing
/// let mut rest = [0; 2];
/// assert_eq!((consumer.pop_slice(&mut rest), rest), (Ok(2), [2, 3]));
/// assert_eq!(consumer.pop(), Err(PopError::Empty));
/// # Ok::<(), PopError>(())
/// ```
pub struct Consumer<'a, K: OneConsumer<T, M>, T, M: Machine> {
    pub(super) state: K::Emptying,
    pub(super) port: Port<'a, M::Word, false>,
    pub(super) slots: Slots<'a, K::Slot>,
    pub(super) head: u64,
}

// SAFETY: it moves `T`s; words have their own operations.
unsafe impl<K: OneConsumer<T, M>, T: Send, M: Machine> Send for Consumer<'_, K, T, M> {}

impl<'a, K: OneConsumer<T, M>, T, M: Machine> Consumer<'a, K, T, M> {
    /// Attaches to a header followed by its slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only this consumer and the ring's producers access them; ends of an MPSC ring
    /// are in one coherence domain.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        T: RingMessage,
        M: Machine<Corrupt = Corrupt>,
    {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only ends of the ring access them, so
        // the header only as words.
        let (header, layout, slots) = unsafe { place::<T, M>(K::FLAGS, base, len)? };
        // SAFETY: the caller promises the only consumer of a valid ring; `place` checked that its slots lie within `len`, and that the
        // capacity is a power of two.
        unsafe { Self::verified(header, header, slots.cast(), layout.capacity()) }
    }

    /// Attaches to two headers: `own` is polled, `peer` is written.
    ///
    /// # Errors
    ///
    /// [`AttachError`], for either header.
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), for both headers and as many slots at `slots` as `own` says. For an MPSC ring both headers are one.
    pub unsafe fn new(own: &'a RingHeader<M::Word>, peer: &'a RingHeader<M::Word>, slots: NonNull<K::Slot>) -> Result<Self, AttachError>
    where
        T: RingMessage,
        M: Machine<Corrupt = Corrupt>,
    {
        let layout = geometry_of_both::<T, _>(K::FLAGS, own, peer)?;
        // SAFETY: the caller promises the only consumer, and as many valid slots as `own` says; the geometry was checked, so `capacity` is
        // the ring's.
        unsafe { Self::verified(own, peer, slots, layout.capacity()) }
    }

    /// # Safety
    ///
    /// As [`over`](Self::over).
    pub(super) unsafe fn verified(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<K::Slot>,
        capacity: u64,
    ) -> Result<Self, AttachError> {
        // SAFETY: the caller promises `capacity` valid slots for `'a`, a power of two that fits `usize`.
        K::verify(own, &unsafe { Slots::new(slots, capacity) })?;
        // SAFETY: for `'a`, the caller promises valid headers, the ring's capacity, a power of two that fits `usize`, and as many valid slots, of which
        // published ones are initialised. Only this consumer and the ring's producers access them; an MPSC ring has one header, and its ends are in one
        // coherence domain.
        unsafe { Self::over(own, peer, slots, capacity) }.map_err(AttachError::Corrupt)
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
        let (head, tail) = K::indices_to_empty(own, peer);
        used(head, tail, capacity)?;
        let mut port = Port::new(own, peer);
        if K::ANNOUNCED {
            port.announce();
        }
        Ok(Self { port, slots, head, state: K::emptying(head, tail) })
    }

    /// Marks this end as open, until it is dropped.
    #[must_use]
    pub fn announce(mut self) -> Self {
        self.port.announce();
        self
    }

    /// As that of a producer.
    #[doc(hidden)]
    pub fn abandon(&mut self) {
        self.port.abandon();
        self.state = K::emptying(self.head, self.head);
    }

    /// Returns whether all announced producers were dropped; their messages remain.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.port.is_disconnected()
    }

    pub(super) const fn wait_words(&self) -> WaitWords<'a, M::Word> {
        self.port.wait_words()
    }

    /// Returns the number of messages, at most the capacity.
    #[must_use]
    pub fn len(&self) -> usize {
        K::waiting(self, self.capacity())
    }

    /// Returns whether the ring is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        K::waiting(self, 1) == 0
    }

    /// Returns the number of free slots.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity() - self.len()
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

    /// Returns the next index to empty.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    #[doc(alias("try_pop", "dequeue"))]
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError<M::Corrupt>> {
        if let Err(nothing) = K::next(self) {
            K::release_deferred(self);
            return Err(nothing);
        }
        let value = K::take(self);
        K::release(self);
        Ok(value)
    }
}

impl<'a, K: OneConsumer<T, M> + InPlace, T, M: Machine> Consumer<'a, K, T, M> {
    /// Returns the payload `offset` slots after the next.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self, offset: u64) -> &'a M::Cell<T> {
        K::cell(self.slots.at(self.head.wrapping_add(offset)))
    }
}

/// Views through `&self` take no message: the next `pop` returns the first one. They cannot cache the index that they poll.
/// [`mpmc`](super::mpmc) rings have none.
impl<K: OneConsumer<T, M> + InPlace, T, M: Machine<Cell<T>: SliceCell<T>>> Consumer<'_, K, T, M> {
    /// Returns the next message in place; it remains the next.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::{PopError, spsc};
    ///
    /// let (mut producer, consumer) = spsc::bounded::<String>(4);
    /// assert_eq!(consumer.end().first(), Err(PopError::Empty));
    /// producer.push("head".to_owned())?;
    /// assert_eq!(consumer.end().first().map(String::as_str), Ok("head"));
    /// assert_eq!(consumer.len(), 1);
    /// # Ok::<(), ringmem::ring::PushError<String>>(())
    /// ```
    #[doc(alias("front", "peek"))]
    pub fn first(&self) -> Result<&T, PopError<M::Corrupt>> {
        let (index, count) = K::seen(self, 1).map_err(PopError::Corrupt)?;
        if count == 0 {
            return Err(PopError::Empty);
        }
        // SAFETY: present, and this end's until it is released, which takes `&mut`.
        Ok(unsafe { &*self.place(index) })
    }

    /// Returns the waiting messages in place, oldest first: in `mpsc` up to the next slot that is unpublished or given up. A corrupt ring yields
    /// none.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc;
    ///
    /// let (mut producer, mut consumer) = spsc::bounded::<u32>(4);
    /// (1..=3).for_each(|number| assert!(producer.push(number).is_ok()));
    /// assert_eq!(consumer.end().iter().rev().copied().collect::<Vec<_>>(), [3, 2, 1]);
    /// assert_eq!(consumer.pop(), Ok(1));
    /// ```
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        let (index, count) = K::seen(self, self.capacity()).unwrap_or((self.head, 0));
        // SAFETY: present, and this end's until they are released, which takes `&mut`.
        (0..count).map(move |offset| unsafe { &*self.place(index.wrapping_add(offset as u64)) })
    }

    fn place(&self, index: u64) -> *mut T {
        K::cell(self.slots.at(index)).with_mut(|place| place)
    }
}

impl<T, M: Machine<Cell<T>: SliceCell<T>>> Consumer<'_, Indexed, T, M> {
    /// Returns all waiting messages in place: before the wrap and after it.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](crate::attach::Corrupt) if the producer's index is outside the ring.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::<u32, 4>::starting_at(2);
    /// let (mut producer, consumer) = ring.split();
    /// producer.push_slice(&[1, 2, 3])?;
    /// assert_eq!(consumer.as_slices()?, [&[1, 2][..], &[3]]);
    /// # Ok::<(), ringmem::attach::Corrupt>(())
    /// ```
    pub fn as_slices(&self) -> Result<[&[T]; 2], M::Corrupt> {
        let (_, count) = <Indexed as OneConsumer<T, M>>::seen(self, self.capacity())?;
        Ok(self.runs(count))
    }
}

#[doc(hidden)]
impl<'a, K: OneConsumer<T, M> + OneProducer<T, M> + InPlace, T, M: Machine> Consumer<'a, K, T, M> {
    /// Returns the payload from the next slot on. For lanes with equal copies of one end; one lane polls and publishes.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self) -> Row<'a, M::Cell<T>> {
        // SAFETY: each slot has its cell at `Kind::CELL`.
        unsafe { self.slots.row(self.head, K::CELL) }
    }

    /// Returns word and value that release the slots, for [`Word::publish_all`](crate::Word::publish_all).
    ///
    /// # Safety
    ///
    /// Only this value is stored to this word, once, after every lane has finished with the slots.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publication(&self) -> (&'a M::Word, u64) {
        (&self.port.peer.consumer.head, self.head)
    }
}

impl<K: OneConsumer<T, M>, T, M: Machine> Drop for Consumer<'_, K, T, M> {
    fn drop(&mut self) {
        K::release_deferred(self);
    }
}
