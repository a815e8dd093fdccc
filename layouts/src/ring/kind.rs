//! [`Kind`]: how an end learns the other end's progress, and how it publishes. The traits are sealed: slot ownership relies on them.
//!
//! # Deferred publication
//!
//! Grants and batches fill several slots and publish them together; batches of a consumer empty several slots and release them together. They borrow
//! the end and publish on drop. But safe code may forget them (`mem::forget`): the end is usable again, and its own index is ahead of the published one.
//! Without care both ends would then wait for ever, the producer for room in a full ring, the consumer for a message in an empty one.
//!
//! | step | producer | consumer |
//! |---|---|---|
//! | a grant or batch begins | [`defer`](OneProducer::defer) | [`defer_release`](OneConsumer::defer_release) |
//! | it publishes what it has so far | [`flush`](OneProducer::flush) | [`release_pending`](OneConsumer::release_pending) |
//! | it is dropped | [`end_deferral`](OneProducer::end_deferral) | [`end_release_deferral`](OneConsumer::end_release_deferral) |
//! | it was forgotten, and the end is used | [`publish_deferred`](OneProducer::publish_deferred) | [`release_deferred`](OneConsumer::release_deferred) |
//!
//! The last step runs in operations that move messages, where the other end's progress may depend on it: before a producer's poll for room, after a
//! consumer's poll that found nothing, before the next deferral, and when the end is dropped. A plain `push` or `pop` needs no such step, since it stores the
//! whole index. `refresh`, `len` and `is_full` only read: they are no way to wait after a batch was forgotten.
//!
//! INVARIANT: unless a deferral has begun and not ended, the published index is the end's own. In `Indexed` a flag says so (`is_deferring`), and the
//! published index is known only during a deferral: a plain `push` then writes one field less. `Flagged` always knows it, because it sets the first flag of
//! a batch last; its `defer` has nothing to do.

mod claimed;
mod flagged;
mod indexed;

pub(super) use claimed::{Look, Turns, claim, fill, format, take};
pub use claimed::{Mpmc, Mpsc, SystemAtomics};
pub use flagged::Flagged;
// For `spsc::untrusted`, which needs 64-bit atomics of the target's own.
#[cfg(target_has_atomic = "64")]
pub use indexed::Access;
pub use indexed::Indexed;
// For `spsc::Ring::split_const`.
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
pub(super) use indexed::{Emptying, Filling};
pub use sealed::Sealed;

use super::slots::Slots;
use super::{Consumer, Producer, RingFlags, RingHeader, value};
use crate::attach::AttachError;
use crate::ring::error::PopError;
use crate::{Machine, SlotCell};

pub trait Kind<T, M: Machine>: Sealed + Sized {
    const FLAGS: RingFlags;

    type Slot;
    /// Offset of the payload in a slot, in bytes.
    #[doc(hidden)]
    const CELL: usize;

    fn cell(slot: &Self::Slot) -> &M::Cell<T>;
}

pub trait OneProducer<T, M: Machine>: Kind<T, M> {
    type Filling;

    /// The next index to fill and the consumer's, for a new producer.
    #[doc(hidden)]
    fn indices_to_fill(own: &RingHeader<M::Word>, peer: &RingHeader<M::Word>, slots: &Slots<'_, Self::Slot>) -> (u64, u64);

    #[doc(hidden)]
    fn filling(tail: u64) -> Self::Filling;

    /// Polls the consumer's index; returns the free slots. First publishes a forgotten grant or batch, which the consumer must see to make room.
    #[doc(hidden)]
    fn room(producer: &mut Producer<'_, Self, T, M>) -> Result<usize, M::Corrupt>;

    #[doc(hidden)]
    fn fill(producer: &mut Producer<'_, Self, T, M>, value: T);

    /// Publishes right after a `fill`.
    #[doc(hidden)]
    fn publish(producer: &mut Producer<'_, Self, T, M>);

    /// Begins a deferral; publishes what a forgotten one has left.
    #[doc(hidden)]
    fn defer(producer: &mut Producer<'_, Self, T, M>);

    /// Publishes all filled slots, if there are unpublished ones.
    #[doc(hidden)]
    fn flush(producer: &mut Producer<'_, Self, T, M>);

    /// Ends a deferral after a flush.
    #[doc(hidden)]
    fn end_deferral(producer: &mut Producer<'_, Self, T, M>) {
        Self::flush(producer);
    }

    /// Publishes a forgotten grant or batch.
    #[doc(hidden)]
    #[inline(always)]
    fn publish_deferred(producer: &mut Producer<'_, Self, T, M>) {
        Self::flush(producer);
    }

    /// The first unpublished index, during a deferral.
    #[doc(hidden)]
    fn published(producer: &Producer<'_, Self, T, M>) -> u64;
}

pub trait OneConsumer<T, M: Machine>: Kind<T, M> {
    type Emptying;
    #[doc(hidden)]
    const ANNOUNCED: bool = false;

    /// The next index to empty and the end of known messages, for a new consumer.
    #[doc(hidden)]
    fn indices_to_empty(own: &RingHeader<M::Word>, peer: &RingHeader<M::Word>) -> (u64, u64);

    /// Checks every slot in foreign memory.
    #[doc(hidden)]
    fn verify(_: &RingHeader<M::Word>, _: &Slots<'_, Self::Slot>) -> Result<(), AttachError> {
        Ok(())
    }

    #[doc(hidden)]
    fn emptying(head: u64, tail: u64) -> Self::Emptying;

    #[doc(hidden)]
    fn waiting(consumer: &Consumer<'_, Self, T, M>, most: usize) -> usize;

    /// The next message's index and the number of consecutive messages, up to `most`, uncached.
    #[doc(hidden)]
    fn seen(consumer: &Consumer<'_, Self, T, M>, most: usize) -> Result<(u64, usize), M::Corrupt>;

    #[doc(hidden)]
    fn next(consumer: &mut Consumer<'_, Self, T, M>) -> Result<(), PopError<M::Corrupt>>;

    /// The number of consecutive messages, up to `most`.
    #[doc(hidden)]
    fn ready(consumer: &mut Consumer<'_, Self, T, M>, most: usize) -> Result<usize, M::Corrupt>;

    /// Takes the next message, which is available, without releasing it.
    #[doc(hidden)]
    #[inline(always)]
    fn take(consumer: &mut Consumer<'_, Self, T, M>) -> T {
        // SAFETY: available, as callers checked; advancing prevents a second read.
        let value = Self::cell(consumer.slots.at(consumer.head)).with(|place| unsafe { value::read(place) });
        consumer.head = consumer.head.wrapping_add(1);
        value
    }

    #[doc(hidden)]
    fn release(consumer: &mut Consumer<'_, Self, T, M>);

    /// Begins a deferral of releases; releases what a forgotten one has left.
    #[doc(hidden)]
    fn defer_release(consumer: &mut Consumer<'_, Self, T, M>);

    /// Releases all emptied slots, if there are unreleased ones.
    #[doc(hidden)]
    fn release_pending(consumer: &mut Consumer<'_, Self, T, M>);

    /// Ends a deferral after releasing.
    #[doc(hidden)]
    fn end_release_deferral(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_pending(consumer);
    }

    /// Releases a forgotten batch, for which the producer waits.
    #[doc(hidden)]
    #[inline(always)]
    fn release_deferred(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_pending(consumer);
    }

    /// The first unreleased index, during a deferral.
    #[doc(hidden)]
    fn released(consumer: &Consumer<'_, Self, T, M>) -> u64;
}

/// A kind whose messages can be borrowed: only its own ends access the slots.
pub trait InPlace: Sealed {}

mod sealed {
    pub trait Sealed {}
}
