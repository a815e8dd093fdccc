//! [`Owned`]: ends for threads and tasks that outlive the ring's creator. The last end drops the ring.
//!
//! Dropping the last consumer drops the values in the ring. A value that a producer pushes later stays until a producer is dropped.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::ring::spsc;
//! let ring = spsc::Boxed::<String>::over(Box::new_uninit_slice(64))?;
//! let (mut producer, mut consumer) = ring.into_ends();
//! let sender = std::thread::spawn(move || producer.push("hello".to_owned()));
//! assert!(sender.join().unwrap().is_ok());
//! assert!(consumer.is_disconnected());
//! assert_eq!(consumer.peek(8).map(|chunk| chunk.len()), Ok(1));
//! assert_eq!(consumer.pop().as_deref(), Ok("hello"));
//! # Ok::<(), ringmem::ring::LayoutError>(())
//! ```

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use super::shared::{Held, Shared, Values};
use crate::ring::error::{PopError, PushError, ReserveError};
use crate::ring::kind::{Flagged, InPlace, Indexed, Mpsc, OneConsumer, OneProducer};
use crate::ring::{BatchConsumer, BatchProducer, Chunk, Consumer, Grant, Producer, framed, lossy, mailbox, mpmc};
use crate::ring::{End, Follow, Pop, PopBytes, Publish, Push, PushBytes, WaitWords};
use crate::{Local, RingMessage};

/// A ring end whose type is also known for every other lifetime of the ring.
///
/// # Safety
///
/// `At<'r>` is `Self` with `'r` substituted for the lifetime of the ring only, and covariant in `'r`. No safe method of it returns a borrow from
/// the ring that outlives `'r`.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use std::fmt::Debug;
/// use ringmem::ring::{Owned, Reborrow, spsc};
///
/// fn show<E: Reborrow>(end: &Owned<E>) -> String
/// where
///     for<'r> E::At<'r>: Debug,
/// {
///     format!("{:?}", end.end())
/// }
///
/// let (producer, _consumer) = spsc::bounded::<u32>(4);
/// assert!(show(&producer).contains("capacity: 4"));
/// ```
// Implemented for every lifetime, and only `end`, `with` and `lent` have the bound: the compiler checks `Send` of an `async` block with fresh
// lifetimes.
pub unsafe trait Reborrow: Sized {
    /// The end of a ring that lives for `'r`.
    type At<'r>;
}

/// A ring end that shares ownership of its ring. The lifetime of the bare end `E` is a placeholder.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mpsc;
///
/// let (producer, mut consumer) = mpsc::bounded::<u32>(8);
/// let threads: Vec<_> = (0..4)
///     .map(|number| {
///         let mut producer = producer.clone();
///         std::thread::spawn(move || producer.push(number).unwrap())
///     })
///     .collect();
/// threads.into_iter().for_each(|thread| thread.join().unwrap());
/// assert_eq!(consumer.try_iter().sum::<u32>(), 6);
/// ```
pub struct Owned<E> {
    // INVARIANT: its ring lives in `ring`, whatever lifetime `E` names. It is dropped before `ring`. Only `end` and `lent` lend it, for the
    // lifetime of the call.
    end: E,
    ring: Ring,
}

/// The last field of an end: dropping it discards values that no consumer is left for.
pub(super) struct Ring(Arc<dyn Held>);

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.discard_if_abandoned();
    }
}

pub(super) fn own<R, P, C, V>(ring: R, split: impl FnOnce(&'static mut R) -> (P, C, V)) -> (Owned<P>, Owned<C>)
where
    R: Send + Sync + 'static,
    V: Values + 'static,
{
    let (producer, consumer, ring) = Shared::split(ring, split);
    (Owned { end: producer, ring: Ring(Arc::clone(&ring)) }, Owned { end: consumer, ring: Ring(ring) })
}

/// As [`own`], for a ring whose messages are bytes: they need no drop.
pub(super) fn own_bytes<R, P, C>(ring: R, split: impl FnOnce(&'static mut R) -> (P, C)) -> (Owned<P>, Owned<C>)
where
    R: Send + Sync + 'static,
{
    own(ring, |ring| {
        let (producer, consumer) = split(ring);
        (producer, consumer, ())
    })
}

impl<E: Reborrow> Owned<E> {
    /// Returns the bare end.
    #[must_use]
    pub fn end(&self) -> &E::At<'_> {
        let end = core::ptr::from_ref(&self.end).cast::<E::At<'_>>();
        // SAFETY: by `Reborrow` the types differ only in a lifetime, which may be shortened; the ring outlives the borrow of `self`.
        unsafe { &*end }
    }

    /// Calls `act` with the bare end; no borrow of the ring can leave it.
    ///
    /// ```compile_fail
    /// # use ringmem_layouts as ringmem;
    /// let (mut producer, _consumer) = ringmem::ring::spsc::Ring::<u8, 4>::new().into_ends();
    /// let grant = producer.with(|end| end.reserve(2)); // it would outlive the borrow
    /// ```
    ///
    /// ```compile_fail
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    /// let (mut one, _) = Ring::<u8, 4>::new().into_ends();
    /// let (mut other, _) = Ring::<u8, 4>::new().into_ends();
    /// one.with(|one| other.with(|other| core::mem::swap(one, other))); // each would hold the other's ring
    /// ```
    pub fn with<R>(&mut self, act: impl for<'r> FnOnce(&mut E::At<'r>) -> R) -> R {
        // `act` accepts any lifetime, so it can only replace the end by a static one, and keep nothing of this one.
        act(self.lent())
    }

    /// A safe caller must not get this reference: it could put another ring's end there. Grants, chunks and batches keep it private.
    fn lent(&mut self) -> &mut E::At<'_> {
        let end = core::ptr::from_mut(&mut self.end).cast::<E::At<'_>>();
        // SAFETY: by `Reborrow` the types differ only in a lifetime, which may be shortened; `self`, whose ring outlives the borrow, is
        // borrowed mutably. No user of `lent` puts a shorter-lived end there.
        unsafe { &mut *end }
    }
}

impl<K: OneProducer<T, Local> + 'static, T: 'static> Owned<Producer<'_, K, T, Local>> {
    /// Reserves `count` slots, to be written in place.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// let (mut producer, mut consumer) = ringmem::ring::spsc::bounded::<u32>(8);
    /// producer.reserve(2)?.fill([1, 2]);
    /// let chunk = consumer.peek(8).unwrap();
    /// assert_eq!(chunk.as_slices(), [&[1, 2][..], &[]]);
    /// chunk.release(2);
    /// # Ok::<(), ringmem::ring::ReserveError>(())
    /// ```
    #[doc(alias("write_chunk", "write_chunk_uninit"))]
    pub fn reserve(&mut self, count: usize) -> Result<Grant<'_, '_, K, T, Local>, ReserveError> {
        self.lent().reserve(count)
    }

    /// Publishes every `every` messages, at least 1.
    pub fn batch(&mut self, every: usize) -> BatchProducer<'_, '_, K, T, Local> {
        self.lent().batch(every)
    }
}

impl<K: OneConsumer<T, Local> + InPlace + 'static, T: 'static> Owned<Consumer<'_, K, T, Local>> {
    /// Returns up to `most` waiting messages in place; only [`Chunk::release`] takes them.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`], also for `most == 0`.
    #[doc(alias = "read_chunk")]
    pub fn peek(&mut self, most: usize) -> Result<Chunk<'_, '_, K, T, Local>, PopError> {
        self.lent().peek(most)
    }

    /// Releases every `every` messages, at least 1. For `Copy` values only.
    pub fn batch(&mut self, every: usize) -> BatchConsumer<'_, '_, K, T, Local>
    where
        T: Copy,
    {
        self.lent().batch(every)
    }
}

impl<T: 'static, const KIND: u64> Owned<mpmc::ManyProducer<'_, T, Local, KIND>> {
    /// Claims `count` slots, to be written in order.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    pub fn reserve(&mut self, count: usize) -> Result<mpmc::Grant<'_, '_, T, Local>, ReserveError> {
        self.lent().reserve(count)
    }

    /// Claims and publishes up to `every` slots at a time (at least 1).
    pub fn batch(&mut self, every: usize) -> mpmc::BatchProducer<'_, '_, T, Local> {
        self.lent().batch(every)
    }
}

impl<T: 'static> Owned<mpmc::Consumer<'_, T, Local>> {
    /// Claims up to `most` messages with one compare-exchange.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`], also for `most == 0`.
    pub fn take(&mut self, most: usize) -> Result<mpmc::Taken<'_, '_, T, Local>, PopError> {
        self.lent().take(most)
    }
}

macro_rules! slices {
    ($([$($generic:tt)*] $end:ty, $operation:ident($values:ty) $(-> $outcome:ident)?, $does:literal;)+) => {$(
        impl<T: Copy + 'static, $($generic)*> Owned<$end> {
            #[doc = $does]
            #[inline]
            pub fn $operation(&mut self, values: $values) -> usize {
                let count = self.end.$operation(values);
                $(let $outcome(count) = count;)?
                count
            }
        }
    )+};
}

slices! {
    [] Producer<'_, Indexed, T, Local>, push_slice(&[T]) -> Ok, "Pushes as many of `values` as fit and publishes them together; returns their number.";
    [] Producer<'_, Flagged, T, Local>, push_slice(&[T]) -> Ok, "Pushes as many of `values` as fit and publishes them together; returns their number.";
    [const KIND: u64] mpmc::ManyProducer<'_, T, Local, KIND>, push_slice(&[T]), "Pushes as many of `values` as fit into consecutive free slots; returns their number.";
    [] Consumer<'_, Indexed, T, Local>, pop_slice(&mut [T]) -> Ok, "Pops as many values as fit and releases their slots together; returns their number.";
    [] Consumer<'_, Flagged, T, Local>, pop_slice(&mut [T]), "Pops as many values as fit and releases their slots together; returns their number.";
    [] Consumer<'_, Mpsc, T, Local>, pop_slice(&mut [T]), "Pops as many values as fit and releases their slots together; returns their number.";
    [] mpmc::Consumer<'_, T, Local>, pop_slice(&mut [T]), "Pops as many consecutive values as fit; returns their number.";
}

impl<E: Push> Owned<E> {
    /// Pushes one value and publishes it.
    ///
    /// # Errors
    ///
    /// [`PushError`] with the value.
    #[doc(alias("try_push", "enqueue"))]
    #[inline]
    pub fn push(&mut self, value: E::Item) -> Result<(), PushError<E::Item, E::Corrupt>> {
        self.end.push(value)
    }
}

impl<E: Pop> Owned<E> {
    /// Pops one value and releases its slot.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    #[doc(alias("try_pop", "dequeue"))]
    #[inline]
    pub fn pop(&mut self) -> Result<E::Item, PopError<E::Corrupt>> {
        self.end.pop()
    }
}

impl Owned<framed::Producer<'_, Local>> {
    /// Pushes a copy of `message` and publishes it.
    ///
    /// # Errors
    ///
    /// [`framed::PushError`].
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// let (mut producer, mut consumer) = ringmem::ring::framed::bounded(256);
    /// producer.push(b"hello")?;
    /// assert_eq!(consumer.peek().as_deref(), Ok(&b"hello"[..]));
    /// # Ok::<(), ringmem::ring::framed::PushError>(())
    /// ```
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> Result<(), framed::PushError> {
        self.end.push(message)
    }

    /// Reserves room for a message of up to `len` bytes, written in place.
    ///
    /// # Errors
    ///
    /// [`framed::PushError`].
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<framed::Grant<'_, '_, Local>, framed::PushError> {
        self.lent().reserve(len)
    }

    /// Publishes every `every` messages, at least 1.
    pub fn batch(&mut self, every: usize) -> framed::BatchProducer<'_, '_, Local> {
        self.lent().batch(every)
    }
}

impl Owned<framed::Consumer<'_, Local>> {
    /// Pops one message into the beginning of `into`; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// [`framed::PopError`].
    #[inline]
    pub fn pop(&mut self, into: &mut [u8]) -> Result<usize, framed::PopError> {
        self.end.pop(into)
    }

    /// Returns the next message in place; only [`release`](framed::Frame::release) takes it.
    ///
    /// # Errors
    ///
    /// [`framed::PopError`].
    #[inline]
    pub fn peek(&mut self) -> Result<framed::Frame<'_, '_, Local>, framed::PopError> {
        self.lent().peek()
    }

    /// Returns the waiting messages in place; only [`release`](framed::Chunk::release) takes them.
    ///
    /// # Errors
    ///
    /// [`framed::PopError`].
    #[inline]
    pub fn peek_many(&mut self) -> Result<framed::Chunk<'_, '_, Local>, framed::PopError> {
        self.lent().peek_many()
    }

    /// Releases every `every` messages, at least 1.
    pub fn batch(&mut self, every: usize) -> framed::BatchConsumer<'_, '_, Local> {
        self.lent().batch(every)
    }
}

impl<T: RingMessage + 'static> Owned<lossy::Writer<'_, T, Local>> {
    /// Overwrites the oldest message and publishes.
    #[inline]
    pub fn push(&mut self, value: T) {
        self.end.push(value);
    }

    /// Writes `values` and publishes them together. Beyond the capacity only the newest are written; all count.
    pub fn push_slice(&mut self, values: &[T]) {
        self.end.push_slice(values);
    }

    /// Publishes every `every` messages, at least 1 and at most the capacity: readers have as many slots less.
    pub fn batch(&mut self, every: usize) -> lossy::BatchWriter<'_, '_, T, Local> {
        self.lent().batch(every)
    }
}

impl<T: RingMessage> Owned<lossy::Reader<'_, T, Local>> {
    /// Reads the next message.
    ///
    /// # Errors
    ///
    /// [`lossy::ReadError`].
    #[inline]
    pub fn pop(&mut self) -> Result<T, lossy::ReadError> {
        self.end.pop()
    }

    /// Returns a copy of the next message, which remains the next.
    ///
    /// # Errors
    ///
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn peek(&mut self) -> Result<T, lossy::ReadError> {
        self.end.peek()
    }

    /// Reads as many messages as fit; returns their number. An overrun after the first ends the call; the next call reports it.
    ///
    /// # Errors
    ///
    /// [`lossy::ReadError::Overrun`]; nothing is read.
    pub fn pop_slice(&mut self, values: &mut [T]) -> Result<usize, lossy::ReadError> {
        self.end.pop_slice(values)
    }

    /// Skips all but the newest `keep` messages; returns the number skipped, not counted as lost.
    pub fn skip(&mut self, keep: usize) -> u64 {
        self.end.skip(keep)
    }

    /// Returns a copy of the newest message, which stays unread, and its number, from 1.
    ///
    /// # Errors
    ///
    /// [`lossy::LatestError`].
    pub fn latest(&self) -> Result<(u64, T), lossy::LatestError> {
        self.end.latest()
    }

    /// Returns the messages lost to this reader.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.end.lost()
    }

    /// Returns whether the writer was dropped; its messages remain.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
}

impl<T: RingMessage> Owned<mailbox::Writer<'_, T, Local>> {
    /// Publishes a value.
    #[inline]
    pub fn publish(&mut self, value: T) {
        self.end.publish(value);
    }

    /// Returns the last version; 0 before the first.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.end.version()
    }
}

impl<T: RingMessage> Owned<mailbox::Reader<'_, T, Local>> {
    /// Returns the latest value, new or not, and its version.
    ///
    /// # Errors
    ///
    /// [`mailbox::LatestError`].
    #[inline]
    pub fn latest(&self) -> Result<(u64, T), mailbox::LatestError> {
        self.end.latest()
    }

    /// Returns the latest value, if untaken by this reader.
    ///
    /// # Errors
    ///
    /// [`mailbox::LatestError`].
    #[inline]
    pub fn take_new(&mut self) -> Result<mailbox::New<T>, mailbox::LatestError> {
        self.end.take_new()
    }

    /// Returns whether there is an untaken value.
    #[must_use]
    #[inline]
    pub fn changed(&self) -> bool {
        self.end.changed()
    }

    /// Returns the last version; 0 before the first.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.end.version()
    }

    /// Returns whether the writer was dropped; its last value remains.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
}

impl<E: Pop> Owned<E> {
    /// Pops values until the ring is empty.
    pub fn try_iter(&mut self) -> impl Iterator<Item = E::Item> {
        core::iter::from_fn(|| self.end.pop().ok())
    }
}

#[doc(hidden)]
#[allow(clippy::len_without_is_empty)]
pub trait Bounded {
    fn capacity(&self) -> usize;
    fn len(&self) -> usize;
}

impl<E: Bounded> Owned<E> {
    /// Returns the capacity: slots, or bytes for [`framed`].
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.end.capacity()
    }

    /// Returns the number of values known to this end; for [`framed`], bytes with lengths.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end.len()
    }

    /// Returns whether the ring is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of free slots known to this end; for [`framed`], of bytes.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Returns whether the ring is full; a lossy ring then overwrites.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }
}

impl<E: End> Owned<E> {
    /// Returns whether the other end was dropped; its messages can still be popped.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
}

impl<E: Clone> Clone for Owned<E> {
    fn clone(&self) -> Self {
        Self { end: self.end.clone(), ring: Ring(Arc::clone(&self.ring.0)) }
    }
}

impl<E: End> End for Owned<E> {
    type Word = E::Word;
    type Corrupt = E::Corrupt;
    const LONGEST_SLEEP: Option<Duration> = E::LONGEST_SLEEP;
    const NEEDS_DROP: bool = E::NEEDS_DROP;
    fn wait_words(&self) -> WaitWords<'_, E::Word> {
        self.end.wait_words()
    }
    fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
    fn is_here(&self) -> bool {
        self.end.is_here()
    }
    fn leave(self, after: impl FnOnce(&E::Word)) {
        // The ring, which has the wait word, must outlive `after`.
        let Self { end, ring } = self;
        end.leave(after);
        drop(ring);
    }
    fn discard_if_abandoned(&self) {
        self.ring.0.discard_if_abandoned();
    }
}

impl<E: Push> Push for Owned<E> {
    type Item = E::Item;
    #[inline]
    fn push(&mut self, value: E::Item) -> Result<(), PushError<E::Item, E::Corrupt>> {
        self.end.push(value)
    }
}

impl<E: Pop> Pop for Owned<E> {
    type Item = E::Item;
    #[inline]
    fn pop(&mut self) -> Result<E::Item, PopError<E::Corrupt>> {
        self.end.pop()
    }
}

impl<E: PushBytes> PushBytes for Owned<E> {
    #[inline]
    fn push_bytes(&mut self, message: &[u8]) -> Result<(), framed::PushError<E::Corrupt>> {
        self.end.push_bytes(message)
    }
}

impl<E: PopBytes> PopBytes for Owned<E> {
    #[inline]
    fn pop_bytes(&mut self, into: &mut [u8]) -> Result<usize, framed::PopError<E::Corrupt>> {
        self.end.pop_bytes(into)
    }
}

impl<E: Publish> Publish for Owned<E> {
    type Item = E::Item;
    #[inline]
    fn publish(&mut self, value: E::Item) {
        self.end.publish(value);
    }
}

impl<E: Follow> Follow for Owned<E> {
    type Item = E::Item;
    type Corrupt = E::Corrupt;
    #[inline]
    fn follow(&mut self) -> Result<E::Item, PopError<E::Corrupt>> {
        self.end.follow()
    }
    fn is_disconnected(&self) -> bool {
        self.end.is_disconnected()
    }
}

impl<E: fmt::Debug> fmt::Debug for Owned<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.end).finish()
    }
}

impl<E> Owned<E> {
    /// No borrow of the ring may escape the operation.
    pub(super) const fn bare_mut(&mut self) -> &mut E {
        &mut self.end
    }
}
