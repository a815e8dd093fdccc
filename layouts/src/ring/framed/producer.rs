use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::end::Producer;
use super::error::PushError;
use super::{SKIP, WORD, frame};
use crate::{Machine, SliceCell, SlotCell, Word};

impl<'a, M: Machine> Producer<'a, M> {
    /// Returns the next index to fill, in words.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.index
    }

    /// Returns the bytes known to be free, not always contiguous; [`refresh`](Self::refresh) polls.
    #[must_use]
    pub const fn free(&self) -> usize {
        self.free_words() as usize * WORD
    }

    #[inline(always)]
    const fn free_words(&self) -> u64 {
        self.slots.capacity() - self.distance(self.seen)
    }

    /// Polls the consumer's index; returns the free bytes.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](crate::attach::Corrupt); this end keeps its last index.
    pub fn refresh(&mut self) -> Result<usize, M::Corrupt> {
        self.look()?;
        Ok(self.free())
    }

    /// Pushes a copy of `message` and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`].
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> Result<(), PushError<M::Corrupt>>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        self.copy(message)?;
        self.publish();
        Ok(())
    }

    /// Pushes copies of `messages` up to the first error, and publishes them together, also if the iterator panics; returns their number.
    ///
    /// # Errors
    ///
    /// [`PushError`], next to the number.
    pub fn push_many<'m>(&mut self, messages: impl IntoIterator<Item = &'m [u8]>) -> (usize, Result<(), PushError<M::Corrupt>>)
    where
        M::Cell<u64>: SliceCell<u64>,
    {
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

    /// Reserves room for a message of up to `len` bytes, written in place.
    ///
    /// # Errors
    ///
    /// [`PushError`].
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Grant<'_, 'a, M>, PushError<M::Corrupt>> {
        let start = self.make_room(len)?;
        Ok(Grant { producer: self, start, len, slack: 0 })
    }

    /// Publishes every `every` messages, at least 1.
    pub fn batch(&mut self, every: usize) -> BatchProducer<'_, 'a, M> {
        self.publish_pending();
        BatchProducer { producer: self, slack: every.max(1) as u64 - 1 }
    }

    /// Returns the index of a frame that ends before the wrap and the consumer's first word.
    #[inline(always)]
    fn make_room(&mut self, len: usize) -> Result<u64, PushError<M::Corrupt>> {
        if len > self.largest() {
            return Err(PushError::TooLarge { largest: self.largest(), asked: len });
        }
        // From here `len` is small: no overflow.
        let words = frame(len as u64);
        let before_wrap = self.slots.until_wrap(self.index);
        let skipped = if words > before_wrap { before_wrap } else { 0 };
        if self.free_words() < skipped + words {
            self.look_for_room(skipped + words)?;
        }
        Ok(self.index.wrapping_add(skipped))
    }

    /// Publishes a batch first: the consumer cannot free unpublished messages.
    #[inline(never)]
    fn look_for_room(&mut self, words: u64) -> Result<(), PushError<M::Corrupt>> {
        self.publish_pending();
        self.refresh().map_err(PushError::Corrupt)?;
        if self.free_words() < words { Err(PushError::Full) } else { Ok(()) }
    }

    #[inline(always)]
    fn copy(&mut self, message: &[u8]) -> Result<(), PushError<M::Corrupt>>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        let start = self.make_room(message.len())?;
        let payload = self.payload(start);
        // SAFETY: `make_room` found that many free bytes before the wrap: this end's, not referenced elsewhere.
        unsafe { payload.as_ptr().copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        self.fill(start, message.len());
        Ok(())
    }

    #[inline(always)]
    fn payload(&self, start: u64) -> NonNull<u8>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        self.slots.run::<u64>(start.wrapping_add(1)).cast()
    }

    /// `make_room` returned `start` for at least `len` bytes.
    #[inline(always)]
    fn fill(&mut self, start: u64, len: usize) {
        if start != self.index {
            // SAFETY: `make_room` found this word free.
            self.slots.at(self.index).with_mut(|word| unsafe { word.write(SKIP) });
        }
        // SAFETY: `make_room` found the word of the frame at `start` free.
        self.slots.at(start).with_mut(|word| unsafe { word.write(len as u64) });
        self.index = start.wrapping_add(frame(len as u64));
    }

    /// Publishes if `slack` others are pending, or the consumer ran dry.
    #[inline(always)]
    fn settle(&mut self, slack: u64) {
        // Relaxed: a hint only.
        if self.pending >= slack || self.port.own.consumer.head.load() == self.published {
            self.publish();
        } else {
            self.pending += 1;
        }
    }
}

/// Room for one message, published by `commit` only. Its bytes are initialised, not necessarily zero.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed;
///
/// let mut ring = framed::Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// let mut grant = producer.reserve(16)?;
/// grant[..5].copy_from_slice(b"hello");
/// grant.commit(5); // a message of 5 bytes
/// let mut bytes = [0; 16];
/// assert_eq!((consumer.pop(&mut bytes), &bytes[..5]), (Ok(5), &b"hello"[..]));
/// # Ok::<(), framed::PushError>(())
/// ```
#[must_use = "a grant that is not committed publishes nothing"]
pub struct Grant<'p, 'a, M: Machine> {
    producer: &'p mut Producer<'a, M>,
    // INVARIANT: the result of `make_room` for `len`; the borrowed producer has not moved since.
    start: u64,
    len: usize,
    slack: u64,
}

impl<M: Machine> Grant<'_, '_, M> {
    /// Returns the bytes granted.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the room is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the cell at byte `8 * place`, as [`Message::word`](super::Message::word).
    #[must_use]
    pub fn word(&self, place: usize) -> Option<&M::Cell<u64>> {
        (place < self.len.div_ceil(WORD)).then(|| self.producer.slots.at(self.start.wrapping_add(1 + place as u64)))
    }

    /// Publishes the first `used` bytes, at most all, as a message, at once or with its batch.
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
        // SAFETY: by the invariant `len` free bytes before the wrap, this end's while borrowed; initialised since attaching.
        unsafe { core::slice::from_raw_parts(self.producer.payload(self.start).as_ptr(), self.len) }
    }
}

impl<M: Machine> DerefMut for Grant<'_, '_, M>
where
    M::Cell<u64>: SliceCell<u64>,
{
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: by the invariant `len` free bytes before the wrap, initialised since attaching; the mutable borrow of the grant makes
        // them this borrow's alone.
        unsafe { core::slice::from_raw_parts_mut(self.producer.payload(self.start).as_ptr(), self.len) }
    }
}

/// Publishes every `every` messages, if the ring looks full or the consumer ran dry, on [`flush`](Self::flush) and on drop. Flush before you wait.
///
/// If it is forgotten, the producer's next publish publishes the rest.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::Ring;
///
/// let mut ring = Ring::<256>::new();
/// let (mut producer, mut consumer) = ring.split();
/// let mut batch = producer.batch(8);
/// for line in ["one", "two", "three"] {
///     batch.push(line.as_bytes())?;
/// }
/// batch.flush(); // before waiting for an answer
/// let chunk = consumer.peek_many().unwrap();
/// assert_eq!(std::iter::from_fn(|| chunk.next().ok()).count(), 3);
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
pub struct BatchProducer<'p, 'a, M: Machine> {
    producer: &'p mut Producer<'a, M>,
    slack: u64,
}

impl<'a, M: Machine> BatchProducer<'_, 'a, M> {
    /// Pushes a copy of `message`; publishes it with its batch.
    ///
    /// # Errors
    ///
    /// [`PushError`]; unless `TooLarge`, earlier messages are published.
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> Result<(), PushError<M::Corrupt>>
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        self.producer.copy(message)?;
        self.producer.settle(self.slack);
        Ok(())
    }

    /// Reserves room for a message of up to `len` bytes, published with its batch.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Grant<'_, 'a, M>, PushError<M::Corrupt>> {
        let start = self.producer.make_room(len)?;
        Ok(Grant { producer: self.producer, start, len, slack: self.slack })
    }

    /// Publishes pending messages.
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
