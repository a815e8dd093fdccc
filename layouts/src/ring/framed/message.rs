use core::cell::Cell;
use core::ops::Deref;

use super::end::Consumer;
use super::error::PopError;
use super::{SKIP, WORD, frame, largest};
use crate::attach::{Corrupt, Corruption};
use crate::ring::slots::Slots;
use crate::{Machine, SliceCell, SlotCell};

/// A waiting message in place, 8-byte aligned.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::Ring;
///
/// let mut ring = Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"hello")?;
/// let frame = consumer.peek().unwrap();
/// let message = frame.message();
/// assert_eq!((message.len(), message.starts_with(b"he")), (5, true)); // a slice of bytes
/// # Ok::<(), ringmem::ring::framed::PushError>(())
/// ```
pub struct Message<'m, M: Machine> {
    slots: Slots<'m, M::Cell<u64>>,
    // INVARIANT: `len` bytes from the word at `payload` are before the wrap, initialised, and not released for 'm.
    payload: u64,
    len: usize,
}

impl<'m, M: Machine> Message<'m, M> {
    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the cell at byte `8 * place`, for machines whose cells are not plain bytes.
    #[must_use]
    pub fn word(&self, place: usize) -> Option<&'m M::Cell<u64>> {
        (place < self.len.div_ceil(WORD)).then(|| self.slots.at(self.payload.wrapping_add(place as u64)))
    }

    /// Returns the bytes.
    #[must_use]
    #[inline(always)]
    pub fn bytes(&self) -> &'m [u8]
    where
        M::Cell<u64>: SliceCell<u64>,
    {
        // SAFETY: by the invariant `len` initialised bytes before the wrap, not released for 'm; unreleased words are not written.
        unsafe { core::slice::from_raw_parts(self.slots.run::<u64>(self.payload).cast().as_ptr(), self.len) }
    }
}

impl<M: Machine> Deref for Message<'_, M>
where
    M::Cell<u64>: SliceCell<u64>,
{
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

/// The next message in place. Dropping it takes nothing.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed;
///
/// let mut ring = framed::Ring::<64>::new();
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(b"hello")?;
/// let frame = consumer.peek().unwrap();
/// assert_eq!(&*frame, b"hello"); // in place
/// frame.release();
/// # Ok::<(), framed::PushError>(())
/// ```
pub struct Frame<'c, 'a, M: Machine> {
    pub(super) consumer: &'c mut Consumer<'a, M>,
    // INVARIANT: the result of `find`; the borrowed consumer has not moved since.
    pub(super) found: Found,
    pub(super) slack: u64,
}

impl<M: Machine> Frame<'_, '_, M> {
    /// Returns the message.
    #[must_use]
    #[inline(always)]
    pub const fn message(&self) -> Message<'_, M> {
        Message { slots: self.consumer.slots, payload: self.found.payload, len: self.found.len }
    }

    /// Takes the message and releases its frame, at once or with its batch.
    #[inline]
    pub fn release(self) {
        self.consumer.index = self.found.next;
        self.consumer.settle(self.slack);
    }
}

impl<M: Machine> Deref for Frame<'_, '_, M>
where
    M::Cell<u64>: SliceCell<u64>,
{
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.message().bytes()
    }
}

/// The messages available at creation, read in order and released together. Dropping it releases none.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::framed::Ring;
/// let mut ring = Ring::<256>::new();
/// let (mut producer, mut consumer) = ring.split();
/// let (taken, rest) = producer.push_many(["to", "", "be", "released"].map(str::as_bytes));
/// assert_eq!((taken, rest), (4, Ok(())));
///
/// let chunk = consumer.peek_many().unwrap();
/// let both = [chunk.next().unwrap(), chunk.next().unwrap()];
/// assert_eq!(both.map(|message| message.bytes()), [b"to".as_slice(), b""]);
/// assert_eq!(chunk.release(), 2);
/// assert_eq!(&*consumer.peek().unwrap(), b"be");
/// ```
pub struct Chunk<'c, 'a, M: Machine> {
    pub(super) consumer: &'c mut Consumer<'a, M>,
    // INVARIANT: between the consumer's head and tail, where a message begins.
    pub(super) next: Cell<u64>,
    pub(super) seen: Cell<usize>,
}

impl<M: Machine> Chunk<'_, '_, M> {
    /// Returns the next message of the chunk.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    #[inline]
    pub fn next(&self) -> Result<Message<'_, M>, PopError<M::Corrupt>> {
        let Consumer { slots, seen: tail, .. } = *self.consumer;
        if self.next.get() == tail {
            return Err(PopError::Empty);
        }
        let Found { payload, len, next } = find::<M>(slots, self.next.get(), tail)?;
        self.next.set(next);
        self.seen.set(self.seen.get() + 1);
        Ok(Message { slots, payload, len })
    }

    /// Releases the messages that [`next`](Self::next) returned; returns their number.
    pub fn release(self) -> usize {
        let messages = self.seen.get();
        if messages > 0 {
            self.consumer.index = self.next.get();
            self.consumer.publish();
        }
        messages
    }
}

pub(super) struct Found {
    pub(super) payload: u64,
    pub(super) len: usize,
    pub(super) next: u64,
}

#[inline(always)]
pub(super) fn find<M: Machine>(slots: Slots<'_, M::Cell<u64>>, head: u64, tail: u64) -> Result<Found, PopError<M::Corrupt>> {
    let bad = |index, word| {
        let found = M::Corrupt::found(Corrupt { head, tail, capacity: slots.capacity() }, PopError::Empty);
        Err(found.unwrap_or_else(|indices| PopError::BadFrame { index, word, indices }))
    };
    // SAFETY: the words from `head` to `tail` are initialised and the consumer's, by its invariant.
    let read = |index| slots.at(index).with(|word| unsafe { word.read() });
    let mut start = head;
    let mut word = read(start);
    if word == SKIP {
        let skipped = slots.until_wrap(head);
        // A frame takes at most half of the ring, so skips less, and is published with its marker.
        if skipped >= slots.capacity() / 2 || skipped >= tail.wrapping_sub(head) {
            return bad(head, word);
        }
        start = head.wrapping_add(skipped);
        word = read(start);
    }
    if word > largest(slots.capacity()) || frame(word) > tail.wrapping_sub(start).min(slots.until_wrap(start)) {
        return bad(start, word);
    }
    Ok(Found { payload: start.wrapping_add(1), len: word as usize, next: start.wrapping_add(frame(word)) })
}
