//! The end that empties frames.

use core::cell::Cell;
use core::ptr::NonNull;

use super::error::PopError;
use super::message::{Chunk, Found, Frame, find};
use super::{WORD, large_enough, largest};
use crate::attach::{AttachError, Corrupt};
use crate::ring::Bells;
use crate::ring::header::{RingFlags, used};
use crate::ring::port::Port;
use crate::ring::slots::{Slots, geometry_of_both, place};
use crate::{Machine, RingHeader, SliceCell, Word};

/// Empties frames and releases them. One per ring.
pub struct Consumer<'a, M: Machine> {
    port: Port<'a, M::Word, false>,
    pub(super) slots: Slots<'a, M::Cell<u64>>,
    // INVARIANT: tail - head <= capacity, wrapping, and the words from head up to tail are initialised and this end's.
    /// The next word to empty.
    pub(super) head: u64,
    /// The producer's index, as last seen.
    pub(super) tail: u64,
    /// This end's index, as last published.
    released: u64,
    /// Messages that a batch has popped and not released.
    pending: u64,
}

// SAFETY: a consumer is handed plain words, and shares its own by their own accesses.
unsafe impl<M: Machine> Send for Consumer<'_, M> {}

impl<'a, M: Machine> Consumer<'a, M> {
    /// Attaches to a ring in one piece of memory: header, then slots.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with what was found instead; a ring of less than 16 bytes is `TooSmall`.
    ///
    /// # Safety
    ///
    /// For `'a`, `len` bytes at `base` are valid and initialised, and nobody but this consumer and one producer touches them.
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
    /// For `'a`, as many cells at `slots` as `own` says are valid and initialised, and nobody but this consumer and one producer touches them
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
        let head = peer.consumer.head.load();
        // SYNC POINT: frame published. Pairs with Producer::publish.
        let tail = own.producer.tail.load_acquire();
        used(head, tail, capacity)?;
        // SAFETY: the caller's promise.
        let slots = unsafe { Slots::new(slots, capacity) };
        Ok(Self { port: Port::new(own, peer), slots, head, tail, released: head, pending: 0 })
    }

    /// Says in the header that this end is open, and on drop that it is closed: the other end's `is_disconnected` sees it.
    #[must_use]
    pub fn announce(mut self) -> Self {
        self.port.announce();
        self
    }

    /// Whether the producer announced itself and has left; what it published before can still be popped.
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
    pub const fn largest(&self) -> usize {
        largest(self.slots.capacity()) as usize
    }

    /// Index of the next word to empty.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that wait now, lengths and padding included; at most the capacity, whatever the other side claims.
    #[must_use]
    pub fn len(&self) -> usize {
        self.poll().wrapping_sub(self.head).min(self.slots.capacity()) as usize * WORD
    }

    /// Whether nothing waits now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are free now, not always in one piece.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Whether not even a message without bytes fits now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Bytes that wait as far as this end has looked, lengths and padding included; [`refresh`](Self::refresh) looks.
    #[must_use]
    pub const fn available(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize * WORD
    }

    /// Looks how far the producer is: bytes that wait now.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if its index claims what cannot be; this end goes on with what it knew.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        let tail = self.poll();
        used(self.head, tail, self.slots.capacity())?;
        self.tail = tail;
        Ok(self.available())
    }

    /// Pops one message into the beginning of `into` and releases its frame: bytes of the message.
    ///
    /// # Errors
    ///
    /// [`PopError`]; after `TooSmall` the message is still there.
    #[inline]
    pub fn pop(&mut self, into: &mut [u8]) -> Result<usize, PopError>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let len = self.copy(into)?;
        self.publish();
        Ok(len)
    }

    /// Looks at the next message in place; it is not taken until [`Frame::release`].
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    #[inline]
    pub fn peek(&mut self) -> Result<Frame<'_, 'a, M>, PopError> {
        let found = self.find()?;
        Ok(Frame { consumer: self, found, slack: 0 })
    }

    /// Looks at all messages that wait now, in place; none is taken until [`Chunk::release`].
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    pub fn peek_many(&mut self) -> Result<Chunk<'_, 'a, M>, PopError> {
        if let Err(corrupt) = self.refresh() {
            return Err(self.nothing(PopError::Corrupt(corrupt)));
        }
        // Says what is wrong with the first one now, rather than give a chunk of none.
        self.find()?;
        let next = Cell::new(self.head);
        Ok(Chunk { consumer: self, next, seen: Cell::new(0) })
    }

    /// Releases every `every` messages instead of each (at least 1).
    pub fn batch(&mut self, every: u64) -> BatchConsumer<'_, 'a, M> {
        self.publish_pending();
        BatchConsumer { consumer: self, slack: every.max(1) - 1 }
    }

    #[inline(always)]
    fn poll(&self) -> u64 {
        // SYNC POINT: frame published. Pairs with Producer::publish.
        self.port.own.producer.tail.load_acquire()
    }

    /// The next message. Looks at the producer's index when all that was known of has been emptied.
    #[inline(always)]
    fn find(&mut self) -> Result<Found, PopError> {
        if self.head == self.tail {
            match self.refresh() {
                Ok(0) => return Err(self.nothing(PopError::Empty)),
                Ok(_) => {}
                Err(corrupt) => return Err(self.nothing(PopError::Corrupt(corrupt))),
            }
        }
        find(self.slots, self.head, self.tail).map_err(|refused| self.nothing(refused))
    }

    /// There is no message: a batch's frames are released, or their producer would wait for them.
    #[cold]
    fn nothing(&mut self, refused: PopError) -> PopError {
        self.publish_pending();
        refused
    }

    /// Copies the next message out and goes on behind its frame, without releasing it.
    #[inline(always)]
    fn copy(&mut self, into: &mut [u8]) -> Result<usize, PopError>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let Found { payload, len, next } = self.find()?;
        if len > into.len() {
            return Err(PopError::TooSmall { needed: len });
        }
        let payload = self.slots.run::<u64>(payload).cast::<u8>();
        // SAFETY: `find` checked that so many bytes are published, short of the wrap and so initialised and this end's; `into` is as long.
        unsafe { payload.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), len) };
        self.head = next;
        Ok(len)
    }

    /// Releases after a frame was emptied: when so many before it are pending already.
    #[inline(always)]
    pub(super) fn settle(&mut self, slack: u64) {
        if self.pending >= slack {
            self.publish();
        } else {
            self.pending += 1;
        }
    }

    /// Releases what was emptied, if anything: a store of what stands there already would only take the line from the producer.
    #[inline(always)]
    fn publish_pending(&mut self) {
        if self.released != self.head {
            self.publish();
        }
    }

    #[inline(always)]
    pub(super) fn publish(&mut self) {
        self.released = self.head;
        self.pending = 0;
        // SYNC POINT: frame released. Pairs with Producer::refresh.
        self.port.peer.consumer.head.store_release(self.head);
    }
}

/// Releases every so many messages; also when it finds the ring empty, on [`flush`](Self::flush) and on drop.
///
/// Forgetting it leaves the last frames for the consumer's next release.
pub struct BatchConsumer<'c, 'a, M: Machine> {
    consumer: &'c mut Consumer<'a, M>,
    /// Messages that may be pending without the next one.
    slack: u64,
}

impl<'a, M: Machine> BatchConsumer<'_, 'a, M> {
    /// Pops one message into the beginning of `into`, and releases its frame with its batch: bytes of the message.
    ///
    /// # Errors
    ///
    /// [`PopError`]; unless it is `TooSmall`, what was popped before has been released.
    #[inline]
    pub fn pop(&mut self, into: &mut [u8]) -> Result<usize, PopError>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let len = self.consumer.copy(into)?;
        self.consumer.settle(self.slack);
        Ok(len)
    }

    /// Looks at the next message in place; its frame is released with its batch.
    ///
    /// # Errors
    ///
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn peek(&mut self) -> Result<Frame<'_, 'a, M>, PopError> {
        let found = self.consumer.find()?;
        Ok(Frame { consumer: self.consumer, found, slack: self.slack })
    }

    /// Releases what was popped.
    #[inline]
    pub fn flush(&mut self) {
        self.consumer.publish_pending();
    }
}

impl<M: Machine> Drop for BatchConsumer<'_, '_, M> {
    fn drop(&mut self) {
        self.flush();
    }
}
