use core::ptr::NonNull;

use super::{WORD, large_enough, largest};
use crate::attach::{AttachError, Corrupt, Corruption};
use crate::ring::header::used;
use crate::ring::port::Port;
use crate::ring::slots::{Slots, geometry_of_both, place};
use crate::ring::{RingFlags, WaitWords};
use crate::{Machine, RingHeader, Word};

/// An end of a framed ring: the producer if `FILLS`, else the consumer.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::framed::{End, Ring};
///
/// fn used<const FILLS: bool>(end: &End<'_, Local, FILLS>) -> usize {
///     100 * end.len() / end.capacity()
/// }
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, consumer) = ring.split();
/// producer.push(&[0; 24])?; // and 8 bytes for its length
/// assert_eq!((used(&producer), used(&consumer)), (50, 50));
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
pub struct End<'a, M: Machine, const FILLS: bool> {
    pub(in crate::ring) port: Port<'a, M::Word, FILLS>,
    pub(super) slots: Slots<'a, M::Cell<u64>>,
    // INVARIANT: wrapping, a producer's index is at most the capacity past `seen`, and the other words are its own. A consumer's is at most the
    // capacity before it; the words between are initialised and its own.
    pub(super) index: u64,
    pub(super) seen: u64,
    pub(super) published: u64,
    pub(super) pending: u64,
}

/// Fills frames and publishes them. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed;
///
/// let mut ring = framed::Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"short")?;
/// producer.push(b"")?; // a message without bytes
/// assert!(matches!(producer.push(&[0; 100]), Err(framed::PushError::TooLarge { .. })));
/// let mut bytes = [0; 32];
/// assert_eq!((consumer.pop(&mut bytes), consumer.pop(&mut bytes)), (Ok(5), Ok(0)));
/// # Ok::<(), framed::PushError>(())
/// ```
pub type Producer<'a, M> = End<'a, M, true>;

/// Empties frames and releases them. One per ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::{PopError, Ring};
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"hello")?;
/// assert_eq!(consumer.pop(&mut [0; 4]), Err(PopError::TooSmall { needed: 5 })); // the message stays
/// let mut message = [0; 16];
/// assert_eq!((consumer.pop(&mut message), &message[..5]), (Ok(5), &b"hello"[..]));
/// assert_eq!(consumer.pop(&mut message), Err(PopError::Empty));
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
pub type Consumer<'a, M> = End<'a, M, false>;

// SAFETY: it moves plain words; words have their own operations.
unsafe impl<M: Machine, const FILLS: bool> Send for End<'_, M, FILLS> {}

impl<'a, M: Machine, const FILLS: bool> End<'a, M, FILLS> {
    /// Attaches to a header followed by its slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; less than 16 bytes are `TooSmall`.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and only one producer and one consumer access them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError>
    where
        M: Machine<Corrupt = Corrupt>,
    {
        // SAFETY: the caller promises that `len` bytes are valid and initialised for `'a`, and that only ends of the ring access them, so
        // the header only as words.
        let (header, layout, slots) = unsafe { place::<u64, M>(RingFlags::FRAMED, base, len)? };
        let capacity = large_enough(&layout)?;
        // SAFETY: the caller promises the ring's only producer or consumer; `place` checked that the cells lie within `len`, and
        // `large_enough` the capacity.
        unsafe { Self::over(header, header, slots.cast(), capacity) }.map_err(AttachError::Corrupt)
    }

    /// Attaches to two headers: `own` is polled, `peer` is written.
    ///
    /// # Errors
    ///
    /// As [`from_raw`](Self::from_raw), for either header.
    ///
    /// # Safety
    ///
    /// As [`from_raw`](Self::from_raw), for both headers and as many cells at `slots` as `own` says.
    pub unsafe fn new(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<M::Cell<u64>>,
    ) -> Result<Self, AttachError>
    where
        M: Machine<Corrupt = Corrupt>,
    {
        let capacity = large_enough(&geometry_of_both::<u64, _>(RingFlags::FRAMED, own, peer)?)?;
        // SAFETY: the caller promises the ring's only producer or consumer, and as many valid cells as `own` says; `large_enough` checked
        // the capacity.
        unsafe { Self::over(own, peer, slots, capacity) }.map_err(AttachError::Corrupt)
    }

    /// # Safety
    ///
    /// As `new`; `capacity` is a power of two, at least the smallest, that fits `usize` in bytes.
    pub(in crate::ring) unsafe fn over(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<M::Cell<u64>>,
        capacity: u64,
    ) -> Result<Self, Corrupt> {
        // SAFETY: the caller promises `capacity` valid cells for `'a`, a power of two that fits `usize`.
        let slots = unsafe { Slots::new(slots, capacity) };
        let port = Port::new(own, peer);
        let index = if FILLS { &peer.producer.tail } else { &peer.consumer.head }.load();
        let mut end = Self { port, slots, index, seen: index, published: index, pending: 0 };
        end.look().map_err(Into::into)?;
        Ok(end)
    }

    /// Marks this end as open, until it is dropped.
    #[must_use]
    pub fn announce(mut self) -> Self {
        self.port.announce();
        self
    }

    /// Returns whether the announced other end was dropped; its messages remain.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.port.is_disconnected()
    }

    pub(in crate::ring) const fn wait_words(&self) -> WaitWords<'a, M::Word> {
        self.port.wait_words()
    }

    /// Returns the size of the ring in bytes.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.slots.capacity() as usize * WORD
    }

    /// Returns the largest message size: half the capacity, less 8 bytes.
    #[must_use]
    #[inline(always)]
    pub const fn largest(&self) -> usize {
        largest(self.slots.capacity()) as usize
    }

    /// Returns the used bytes, with an unfinished batch; at most the capacity.
    #[must_use]
    pub fn len(&self) -> usize {
        self.distance(self.poll()).min(self.slots.capacity()) as usize * WORD
    }

    /// Returns whether the ring is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether not even an empty message fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    #[inline(always)]
    pub(super) const fn distance(&self, other: u64) -> u64 {
        if FILLS { self.index.wrapping_sub(other) } else { other.wrapping_sub(self.index) }
    }

    #[inline(always)]
    pub(super) fn look(&mut self) -> Result<(), M::Corrupt> {
        let other = self.poll();
        let (head, tail) = if FILLS { (other, self.index) } else { (self.index, other) };
        if let Err(corrupt) = used(head, tail, self.slots.capacity()) {
            return M::Corrupt::found(corrupt, ());
        }
        self.seen = other;
        Ok(())
    }

    #[inline(always)]
    pub(super) fn poll(&self) -> u64 {
        // SYNC POINT: frame published, frame released. Pairs with the other end's publish.
        if FILLS { &self.port.own.consumer.head } else { &self.port.own.producer.tail }.load_acquire()
    }

    /// A redundant store would take the line from the other end.
    #[inline(always)]
    pub(super) fn publish_pending(&mut self) {
        if self.published != self.index {
            self.publish();
        }
    }

    #[inline(always)]
    pub(super) fn publish(&mut self) {
        self.published = self.index;
        self.pending = 0;
        // SYNC POINT: frame published, frame released. Pairs with the other end's poll.
        if FILLS { &self.port.peer.producer.tail } else { &self.port.peer.consumer.head }.store_release(self.index);
    }
}
