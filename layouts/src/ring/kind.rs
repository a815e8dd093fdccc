//! [`Kind`]: the differences between the kinds of rings. [`Producer`](super::Producer), [`Consumer`](super::Consumer), their grants, chunks and
//! batches are generic over these traits.
//!
//! A kind defines the memory of an index, how an end learns the other end's progress, and how it publishes. The traits are sealed, because the
//! ownership of slots relies on them.

mod claimed;
mod flagged;
mod indexed;

pub(super) use claimed::{Look, Turns, claim, fill, format, take};
pub use claimed::{Mpmc, Mpsc, SystemAtomics};
pub use flagged::Flagged;
pub use indexed::{Access, Indexed};
pub use sealed::Sealed;

use super::slots::Slots;
use super::{Consumer, Producer, RingFlags, RingHeader};
use crate::attach::{AttachError, Corrupt};
use crate::ring::error::PopError;
use crate::{Machine, SlotCell};

/// A kind of ring for messages of type `T` on machine `M`.
pub trait Kind<T, M: Machine>: Sealed + Sized {
    /// The kind in the header.
    const FLAGS: RingFlags;

    /// The memory of each index.
    type Slot;
    /// Where the payload stands in it, in bytes.
    #[doc(hidden)]
    const CELL: usize;

    /// Returns the place of the payload in a slot.
    fn cell(slot: &Self::Slot) -> &M::Cell<T>;
}

/// A kind with one producer.
pub trait OneProducer<T, M: Machine>: Kind<T, M> {
    /// The producer's state besides the indices.
    type Filling;

    /// Returns the next index to fill and the consumer's index, as a new producer finds them.
    #[doc(hidden)]
    fn indices_to_fill(own: &RingHeader<M::Word>, peer: &RingHeader<M::Word>, slots: &Slots<'_, Self::Slot>) -> (u64, u64);

    /// Returns the state of a new producer at `tail`.
    #[doc(hidden)]
    fn filling(tail: u64) -> Self::Filling;

    /// Polls the consumer's index when fewer slots are free than wanted; returns how many are free now. Publishes the slots of a forgotten grant or
    /// batch: the consumer makes no room while it cannot see them.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if that index is outside the ring.
    #[doc(hidden)]
    fn room(producer: &mut Producer<'_, Self, T, M>) -> Result<u64, Corrupt>;

    /// Writes the next slot, which is free, and advances the index.
    #[doc(hidden)]
    fn fill(producer: &mut Producer<'_, Self, T, M>, value: T);

    /// Publishes all that was filled, right after a `fill`.
    #[doc(hidden)]
    fn publish(producer: &mut Producer<'_, Self, T, M>);

    /// Begins to fill without publishing.
    #[doc(hidden)]
    fn hold(producer: &mut Producer<'_, Self, T, M>);

    /// Publishes the slots filled since [`hold`](Self::hold), if any.
    #[doc(hidden)]
    fn flush(producer: &mut Producer<'_, Self, T, M>);

    /// Ends the hold that [`hold`](Self::hold) began.
    #[doc(hidden)]
    fn end_hold(producer: &mut Producer<'_, Self, T, M>) {
        Self::flush(producer);
    }

    /// Publishes the slots filled by a forgotten grant or batch.
    #[doc(hidden)]
    #[inline(always)]
    fn settle(producer: &mut Producer<'_, Self, T, M>) {
        Self::flush(producer);
    }

    /// Returns the first index that is not published, while slots are held.
    #[doc(hidden)]
    fn published(producer: &Producer<'_, Self, T, M>) -> u64;
}

/// A kind with one consumer.
pub trait OneConsumer<T, M: Machine>: Kind<T, M> {
    /// The consumer's state besides its index.
    type Emptying;
    /// Whether a consumer announces itself when it attaches.
    #[doc(hidden)]
    const ANNOUNCED: bool = false;

    /// Returns the next index to empty, and the one up to which messages are known to be there, as a new consumer finds them.
    #[doc(hidden)]
    fn indices_to_empty(own: &RingHeader<M::Word>, peer: &RingHeader<M::Word>) -> (u64, u64);

    /// Reads every slot of a ring that is attached to in memory, where its words can be wrong.
    ///
    /// # Errors
    ///
    /// [`AttachError`] with the value found.
    #[doc(hidden)]
    fn verify(_: &RingHeader<M::Word>, _: &Slots<'_, Self::Slot>) -> Result<(), AttachError> {
        Ok(())
    }

    /// Returns the state of a new consumer.
    #[doc(hidden)]
    fn emptying(head: u64, tail: u64) -> Self::Emptying;

    /// Returns how many messages are in the ring now, at most `most`.
    #[doc(hidden)]
    fn waiting(consumer: &Consumer<'_, Self, T, M>, most: u64) -> u64;

    /// Checks that there is a next message.
    ///
    /// # Errors
    ///
    /// [`PopError`]: empty, or corrupt.
    #[doc(hidden)]
    fn next(consumer: &mut Consumer<'_, Self, T, M>) -> Result<(), PopError>;

    /// Returns the number of consecutive available messages, up to `most`.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the producer's index is outside the ring.
    #[doc(hidden)]
    fn ready(consumer: &mut Consumer<'_, Self, T, M>, most: u64) -> Result<u64, Corrupt>;

    /// Takes the next message, which is available, without releasing its slot.
    #[doc(hidden)]
    #[inline(always)]
    fn take(consumer: &mut Consumer<'_, Self, T, M>) -> T {
        // SAFETY: it is available, as callers have checked; advancing ensures that it is read once.
        let value = Self::cell(consumer.slots.at(consumer.head)).with(|place| unsafe { place.read() });
        consumer.head = consumer.head.wrapping_add(1);
        value
    }

    /// Releases all taken slots.
    #[doc(hidden)]
    fn release(consumer: &mut Consumer<'_, Self, T, M>);

    /// Begins to take without releasing.
    #[doc(hidden)]
    fn keep(consumer: &mut Consumer<'_, Self, T, M>);

    /// Releases the slots taken since [`keep`](Self::keep), if any.
    #[doc(hidden)]
    fn release_kept(consumer: &mut Consumer<'_, Self, T, M>);

    /// Ends the hold that [`keep`](Self::keep) began.
    #[doc(hidden)]
    fn end_keep(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_kept(consumer);
    }

    /// Releases the slots taken by a forgotten batch: the producer waits for them.
    #[doc(hidden)]
    #[inline(always)]
    fn settle_kept(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_kept(consumer);
    }

    /// Returns the first index that is not released, while slots are held.
    #[doc(hidden)]
    fn released(consumer: &Consumer<'_, Self, T, M>) -> u64;
}

/// A kind whose messages can be borrowed in place: only its own ends access the slots.
pub trait InPlace: Sealed {}

mod sealed {
    /// Kinds are the crate's own.
    pub trait Sealed {}
}
