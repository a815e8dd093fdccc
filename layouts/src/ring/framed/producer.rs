//! The end that fills frames.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::error::PushError;
use super::{SKIP, WORD, frame, large_enough, largest};
use crate::attach::{AttachError, Corrupt};
use crate::ring::Bells;
use crate::ring::header::{RingFlags, used};
use crate::ring::port::Port;
use crate::ring::slots::{Slots, geometry_of_both, place};
use crate::{Machine, RingHeader, SliceCell, SlotCell, Word};

/// Fills frames and publishes them. One per ring.
pub struct Producer<'a, M: Machine> {
    port: Port<'a, M::Word, true>,
    slots: Slots<'a, M::Cell<u64>>,
    // INVARIANT: tail - head <= capacity, wrapping, and the words from tail up to head + capacity are this end's.
    /// The next word to fill.
    tail: u64,
    /// The consumer's index, as last seen.
    head: u64,
    /// This end's index, as last published.
    published: u64,
    /// Messages that a batch has pushed and not published.
    pending: u64,
}

// SAFETY: a producer hands over plain words, and shares its own by their own accesses.
unsafe impl<M: Machine> Send for Producer<'_, M> {}

impl<'a, M: Machine> Producer<'a, M> {
    /// Attaches to a ring in one piece of memory: header, then slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead; a ring of less than 16 bytes is `TooSmall`.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and nobody but this producer and one consumer touches them.
    pub unsafe fn from_raw(base: NonNull<u8>, len: u64) -> Result<Self, AttachError> {
        // SAFETY: the caller's promise.
        let (header, layout, slots) = unsafe { place::<u64, M>(RingFlags::FRAMED, base, len)? };
        let capacity = large_enough(&layout)?;
        // SAFETY: the caller's promise; so many cells were checked against `len`, and the header is not asked again.
        unsafe { Self::over(header, header, slots.cast(), capacity) }.map_err(AttachError::Corrupt)
    }

    /// Attaches to a ring whose two headers lie apart: `own` is polled, `peer` is written.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead, in either header; a ring of less than 16 bytes is `TooSmall`.
    ///
    /// # Safety
    ///
    /// For `'a`, as many cells at `slots` as `own` says are valid and initialised, and nobody but this producer and one consumer touches them
    /// or the headers.
    pub unsafe fn new(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<M::Cell<u64>>,
    ) -> Result<Self, AttachError> {
        let capacity = large_enough(&geometry_of_both::<u64, _>(RingFlags::FRAMED, own, peer)?)?;
        // SAFETY: the caller's promise; a layout's capacity is a power of two that fits memory.
        unsafe { Self::over(own, peer, slots, capacity) }.map_err(AttachError::Corrupt)
    }

    /// # Safety
    ///
    /// As `new`; `capacity` is a power of two that fits `usize` in bytes, and at least the smallest.
    pub(super) unsafe fn over(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<M::Cell<u64>>,
        capacity: u64,
    ) -> Result<Self, Corrupt> {
        let tail = peer.producer.tail.load();
        // SYNC POINT: frame released. Pairs with Consumer::publish.
        let head = own.consumer.head.load_acquire();
        used(head, tail, capacity)?;
        // SAFETY: the caller's promise.
        let slots = unsafe { Slots::new(slots, capacity) };
        Ok(Self { port: Port::new(own, peer), slots, tail, head, published: tail, pending: 0 })
    }

    /// Says in the header that this end is open, and on drop that it is closed: the other end's `is_disconnected` sees it.
    #[must_use]
    pub fn announce(mut self) -> Self {
        self.port.announce();
        self
    }

    /// Whether the consumer announced itself and has left.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.port.is_disconnected()
    }

    pub(in crate::ring) const fn wait_words(&self) -> Bells<'a, M::Word> {
        self.port.bells()
    }

    /// Bytes of the ring, lengths and padding included.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.slots.capacity() as usize * WORD
    }

    /// Bytes of the largest message: half of the capacity, less 8.
    #[must_use]
    #[inline(always)]
    pub const fn largest(&self) -> usize {
        largest(self.slots.capacity()) as usize
    }

    /// Bytes in the ring now, lengths and padding and an unfinished batch included; at most the capacity, whatever the other side claims.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.poll()).min(self.slots.capacity()) as usize * WORD
    }

    /// Whether nothing is in the ring now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether not even a message without bytes fits now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Index of the next word to fill.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Bytes that are free as far as this end has looked, not always in one piece; [`refresh`](Self::refresh) looks.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.free_words() as usize * WORD
    }

    #[inline(always)]
    const fn free_words(&self) -> u64 {
        self.slots.capacity() - self.tail.wrapping_sub(self.head)
    }

    /// Looks how far the consumer is: bytes that are free now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be; this end goes on with what it knew.
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        let head = self.poll();
        used(head, self.tail, self.slots.capacity())?;
        self.head = head;
        Ok(self.free())
    }

    /// Pushes a copy of `message` and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`]: not now, never, or corrupt.
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> Result<(), PushError>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        self.copy(message)?;
        self.publish();
        Ok(())
    }

    /// Pushes copies of `messages` up to the first that is not taken, and publishes them together: how many were taken, and why the next
    /// one was not. If the iterator panics, those that it gave before are published.
    ///
    /// # Errors
    ///
    /// [`PushError`] beside the number: the message after so many is not now, never, or corrupt.
    pub fn push_many<'m>(&mut self, messages: impl IntoIterator<Item = &'m [u8]>) -> (u64, Result<(), PushError>)
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        /// Publishes what was filled, also when the iterator panics.
        struct Together<'p, 'a, M: Machine>(&'p mut Producer<'a, M>);
        impl<M: Machine> Drop for Together<'_, '_, M> {
            fn drop(&mut self) {
                self.0.publish_pending();
            }
        }
        let guard = Together(self);
        let mut taken = 0;
        for message in messages {
            if let Err(refused) = guard.0.copy(message) {
                return (taken, Err(refused));
            }
            taken += 1;
        }
        (taken, Ok(()))
    }

    /// Reserves room for a message of up to `len` bytes, to be written in place.
    ///
    /// # Errors
    ///
    /// [`PushError`]: not now, never, or corrupt.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Grant<'_, 'a, M>, PushError> {
        let start = self.make_room(len)?;
        Ok(Grant { producer: self, start, len, slack: 0 })
    }

    /// Publishes every `every` messages instead of each (at least 1).
    pub fn batch(&mut self, every: u64) -> BatchProducer<'_, 'a, M> {
        self.publish_pending();
        BatchProducer { producer: self, slack: every.max(1) - 1 }
    }

    #[inline(always)]
    fn poll(&self) -> u64 {
        // SYNC POINT: frame released. Pairs with Consumer::publish.
        self.port.own.consumer.head.load_acquire()
    }

    /// Index of a frame for `len` bytes, which ends before the wrap and before the consumer's first word.
    #[inline(always)]
    fn make_room(&mut self, len: usize) -> Result<u64, PushError> {
        if len > self.largest() {
            return Err(PushError::TooLarge { largest: self.largest(), asked: len });
        }
        // From here on `len` is small: nothing overflows.
        let words = frame(len as u64);
        let before_wrap = self.slots.before_wrap(self.tail, u64::MAX);
        let skipped = if words > before_wrap { before_wrap } else { 0 };
        if self.free_words() < skipped + words {
            self.look_for_room(skipped + words)?;
        }
        Ok(self.tail.wrapping_add(skipped))
    }

    /// Looks whether the consumer has left so many words by now. A batch's messages are published first, or it would wait for them.
    #[inline(never)]
    fn look_for_room(&mut self, words: u64) -> Result<(), PushError> {
        self.publish_pending();
        self.refresh().map_err(PushError::Corrupt)?;
        if self.free_words() < words { Err(PushError::Full) } else { Ok(()) }
    }

    /// Fills the next frame with a copy.
    #[inline(always)]
    fn copy(&mut self, message: &[u8]) -> Result<(), PushError>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let start = self.make_room(message.len())?;
        let payload = self.payload(start);
        // SAFETY: `make_room` found so many bytes short of the wrap, free and so this end's; nobody else has a reference to them.
        unsafe { payload.as_ptr().copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        self.fill(start, message.len());
        Ok(())
    }

    /// Where the bytes of a frame at `start` begin.
    #[inline(always)]
    fn payload(&self, start: u64) -> NonNull<u8>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        self.slots.run::<u64>(start.wrapping_add(1)).cast()
    }

    /// Ends the frame at `start`, which `make_room` gave for at least `len` bytes; does not publish it.
    #[inline(always)]
    fn fill(&mut self, start: u64, len: usize) {
        if start != self.tail {
            // SAFETY: `make_room` found this word free, and so this end's.
            self.slots.at(self.tail).with_mut(|word| unsafe { word.write(SKIP) });
        }
        // SAFETY: as above.
        self.slots.at(start).with_mut(|word| unsafe { word.write(len as u64) });
        self.tail = start.wrapping_add(frame(len as u64));
    }

    /// Publishes after a frame was filled: when so many before it are pending already, and when the consumer has run dry.
    #[inline(always)]
    fn settle(&mut self, slack: u64) {
        // Relaxed: only asks whether to hurry.
        if self.pending >= slack || self.port.own.consumer.head.load() == self.published {
            self.publish();
        } else {
            self.pending += 1;
        }
    }

    /// Publishes what was filled, if anything: a store of what stands there already would only take the line from the consumer.
    #[inline(always)]
    fn publish_pending(&mut self) {
        if self.published != self.tail {
            self.publish();
        }
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.published = self.tail;
        self.pending = 0;
        // SYNC POINT: frame published. Pairs with Consumer::refresh.
        self.port.peer.producer.tail.store_release(self.tail);
    }
}

/// Room for one message, to be written in place and committed. Dropping or forgetting it publishes nothing.
///
/// It is seen as bytes that hold what an earlier message left there: initialised, never empty memory, and never promised to be zero.
#[must_use = "a grant that is not committed publishes nothing"]
pub struct Grant<'p, 'a, M: Machine> {
    producer: &'p mut Producer<'a, M>,
    // INVARIANT: what `make_room` gave for `len`; the producer has not moved since, because it is borrowed.
    start: u64,
    len: usize,
    /// Messages that may be pending without this one.
    slack: u64,
}

impl<M: Machine> Grant<'_, '_, M> {
    /// Bytes granted.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none were asked for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The cell of the granted bytes from `8 * place`; `None` past the end. For machines whose cells are no plain bytes.
    #[must_use]
    pub fn word(&self, place: usize) -> Option<&M::Cell<u64>> {
        (place < self.len.div_ceil(WORD)).then(|| self.producer.slots.at(self.start.wrapping_add(1 + place as u64)))
    }

    /// Makes a message of the first `used` bytes, or of all of them if there are not so many, and publishes it: at once, or with its batch.
    #[inline]
    pub fn commit(self, used: usize) {
        self.producer.fill(self.start, used.min(self.len));
        self.producer.settle(self.slack);
    }
}

impl<M: Machine> Deref for Grant<'_, '_, M>
where
    M::Cell<u64>: SliceCell<u64>,
{
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: by the invariant so many bytes short of the wrap are free and so this end's, as long as this grant is borrowed; they are
        // initialised since the ring was attached.
        unsafe { core::slice::from_raw_parts(self.producer.payload(self.start).as_ptr(), self.len) }
    }
}

impl<M: Machine> DerefMut for Grant<'_, '_, M>
where
    M::Cell<u64>: SliceCell<u64>,
{
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.producer.payload(self.start).as_ptr(), self.len) }
    }
}

/// Publishes every so many messages; also when the ring looks full, when the consumer has emptied what was published, on
/// [`flush`](Self::flush) and on drop. Its bound is messages, never time: flush before you wait.
///
/// Forgetting it leaves the last messages for the producer's next publish.
pub struct BatchProducer<'p, 'a, M: Machine> {
    producer: &'p mut Producer<'a, M>,
    /// Messages that may be pending without the next one.
    slack: u64,
}

impl<'a, M: Machine> BatchProducer<'_, 'a, M> {
    /// Pushes a copy of `message`; publishes it with its batch.
    ///
    /// # Errors
    ///
    /// [`PushError`]; unless it is `TooLarge`, what was pushed before has been published.
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> Result<(), PushError>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        self.producer.copy(message)?;
        self.producer.settle(self.slack);
        Ok(())
    }

    /// Reserves room for a message of up to `len` bytes, to be written in place and published with its batch.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Grant<'_, 'a, M>, PushError> {
        let start = self.producer.make_room(len)?;
        Ok(Grant { producer: self.producer, start, len, slack: self.slack })
    }

    /// Publishes what is pending.
    #[inline]
    pub fn flush(&mut self) {
        self.producer.publish_pending();
    }
}

impl<M: Machine> Drop for BatchProducer<'_, '_, M> {
    fn drop(&mut self) {
        self.flush();
    }
}
