use core::cell::Cell;

use super::WORD;
use super::end::Consumer;
use super::error::PopError;
use super::message::{Chunk, Found, Frame, find};
use crate::{Machine, SliceCell};

impl<'a, M: Machine> Consumer<'a, M> {
    /// Returns the next index to empty, in words.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.index
    }

    /// Returns the free bytes, not always contiguous.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Returns the bytes known to wait; [`refresh`](Self::refresh) polls.
    #[must_use]
    pub const fn available(&self) -> usize {
        self.distance(self.seen) as usize * WORD
    }

    /// Polls the producer's index; returns the waiting bytes.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](crate::attach::Corrupt); this end keeps its last index.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, M::Corrupt> {
        self.look()?;
        Ok(self.available())
    }

    /// Pops one message into `into`; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// [`PopError`]; after `TooSmall` the message remains.
    #[inline]
    pub fn pop(&mut self, into: &mut [u8]) -> Result<usize, PopError<M::Corrupt>>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let len = self.copy(into)?;
        self.publish();
        Ok(len)
    }

    /// Returns the next message in place; it stays until [`Frame::release`].
    ///
    /// # Errors
    ///
    /// [`PopError`].
    #[inline]
    pub fn peek(&mut self) -> Result<Frame<'_, 'a, M>, PopError<M::Corrupt>> {
        let found = self.find()?;
        Ok(Frame { consumer: self, found, slack: 0 })
    }

    /// Returns all messages in place; they stay until [`Chunk::release`].
    ///
    /// # Errors
    ///
    /// [`PopError`].
    pub fn peek_many(&mut self) -> Result<Chunk<'_, 'a, M>, PopError<M::Corrupt>> {
        if let Err(corrupt) = self.refresh() {
            return Err(self.nothing(PopError::Corrupt(corrupt)));
        }
        self.find()?;
        let next = Cell::new(self.index);
        Ok(Chunk { consumer: self, next, seen: Cell::new(0) })
    }

    /// Releases every `every` messages, at least 1.
    pub fn batch(&mut self, every: usize) -> BatchConsumer<'_, 'a, M> {
        self.publish_pending();
        BatchConsumer { consumer: self, slack: every.max(1) as u64 - 1 }
    }

    #[inline(always)]
    fn find(&mut self) -> Result<Found, PopError<M::Corrupt>> {
        if self.index == self.seen {
            match self.refresh() {
                Ok(0) => return Err(self.nothing(PopError::Empty)),
                Ok(_) => {}
                Err(corrupt) => return Err(self.nothing(PopError::Corrupt(corrupt))),
            }
        }
        find::<M>(self.slots, self.index, self.seen).map_err(|refused| self.nothing(refused))
    }

    /// Releases a batch's frames, for which the producer may wait.
    #[cold]
    fn nothing(&mut self, refused: PopError<M::Corrupt>) -> PopError<M::Corrupt> {
        self.publish_pending();
        refused
    }

    #[inline(always)]
    fn copy(&mut self, into: &mut [u8]) -> Result<usize, PopError<M::Corrupt>>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let Found { payload, len, next } = self.find()?;
        if len > into.len() {
            return Err(PopError::TooSmall { needed: len });
        }
        let payload = self.slots.run::<u64>(payload).cast::<u8>();
        // SAFETY: `find` checked that `len` bytes before the wrap are published; `into` is as long.
        unsafe { payload.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), len) };
        self.index = next;
        Ok(len)
    }

    #[inline(always)]
    pub(super) fn settle(&mut self, slack: u64) {
        if self.pending >= slack {
            self.publish();
        } else {
            self.pending += 1;
        }
    }
}

/// Releases every `every` messages, when the ring is empty, on [`flush`](Self::flush) and on drop.
///
/// If it is forgotten, the consumer's next release releases the rest.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::Ring;
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push_many([b"one".as_slice(), b"two"]).1?;
/// let mut batch = consumer.batch(8);
/// assert_eq!((batch.pop(&mut [0; 8]), batch.pop(&mut [0; 8])), (Ok(3), Ok(3)));
/// assert_eq!(producer.len(), 32); // not released yet
/// batch.flush();
/// assert_eq!(producer.len(), 0);
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
pub struct BatchConsumer<'c, 'a, M: Machine> {
    consumer: &'c mut Consumer<'a, M>,
    slack: u64,
}

impl<'a, M: Machine> BatchConsumer<'_, 'a, M> {
    /// Like [`Consumer::pop`], but releases the frame with its batch.
    ///
    /// # Errors
    ///
    /// [`PopError`]; unless `TooSmall`, earlier messages are released.
    #[inline]
    pub fn pop(&mut self, into: &mut [u8]) -> Result<usize, PopError<M::Corrupt>>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let len = self.consumer.copy(into)?;
        self.consumer.settle(self.slack);
        Ok(len)
    }

    /// Returns the next message in place; releases its frame with its batch.
    ///
    /// # Errors
    ///
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn peek(&mut self) -> Result<Frame<'_, 'a, M>, PopError<M::Corrupt>> {
        let found = self.consumer.find()?;
        Ok(Frame { consumer: self.consumer, found, slack: self.slack })
    }

    /// Releases popped messages.
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
