use core::mem::offset_of;

use super::sealed::Sealed;
use super::{InPlace, Kind, OneConsumer, OneProducer};
use crate::ring::error::PopError;
use crate::ring::slots::{Slot, Slots, free};
use crate::ring::{Consumer, Producer, RingFlags, RingHeader, value};
use crate::{Machine, SlotCell, Word};

/// The kind of [`flagged`](crate::ring::flagged) rings.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::{Consumer, Flagged, RingFlags, flagged};
///
/// let mut ring = flagged::Ring::<u32, 4>::new();
/// let (_, consumer): (_, Consumer<'_, Flagged, u32, Local>) = ring.split(); // `flagged::Consumer<'_, u32, Local>`
/// assert_eq!(consumer.kind(), RingFlags::FLAGGED);
/// ```
pub struct Flagged(());

#[inline(always)]
const fn full(index: u64, capacity: u64) -> u64 {
    free(index, capacity) | 1
}

impl Sealed for Flagged {}
impl InPlace for Flagged {}

impl<T, M: Machine> Kind<T, M> for Flagged {
    const FLAGS: RingFlags = RingFlags::FLAGGED;
    type Slot = Slot<M::Word, M::Cell<T>>;
    const CELL: usize = offset_of!(Slot<M::Word, M::Cell<T>>, cell);

    #[inline(always)]
    fn cell(slot: &Self::Slot) -> &M::Cell<T> {
        &slot.cell
    }
}

pub struct Filling {
    // INVARIANT: no free slot of the producer has the flag of its index. Slots from here to its tail are written; only the first lacks its flag.
    published: u64,
}

impl<T, M: Machine> OneProducer<T, M> for Flagged {
    type Filling = Filling;

    fn indices_to_fill(own: &RingHeader<M::Word>, _: &RingHeader<M::Word>, slots: &Slots<'_, Self::Slot>) -> (u64, u64) {
        let capacity = slots.capacity();
        // SYNC POINT: slot released. Pairs with the consumer's `release`.
        let head = own.consumer.head.load_acquire();
        let is_full = |offset: u64| {
            let index = head.wrapping_add(offset);
            slots.at(index).word.load() == full(index, capacity)
        };
        // A device would store an iterator in local memory.
        let mut waiting = 0;
        while waiting < capacity && is_full(waiting) {
            waiting += 1;
        }
        // Flags after an unpublished message would be published by the next one.
        let mut offset = waiting;
        while offset < capacity {
            if is_full(offset) {
                slots.at(head.wrapping_add(offset)).word.store(0);
            }
            offset += 1;
        }
        (head.wrapping_add(waiting), head)
    }

    #[inline(always)]
    fn filling(tail: u64) -> Filling {
        Filling { published: tail }
    }

    #[inline(always)]
    fn room(producer: &mut Producer<'_, Self, T, M>) -> Result<usize, M::Corrupt> {
        Self::flush(producer);
        producer.refresh()
    }

    #[inline(always)]
    fn fill(producer: &mut Producer<'_, Self, T, M>, value: T) {
        let slot = producer.slots.at(producer.tail);
        // SAFETY: this end's while `free` is not 0, as callers checked.
        slot.cell.with_mut(|place| unsafe { value::write(place, value) });
        if producer.tail != producer.state.published {
            // Read only after the first flag was acquired.
            slot.word.store(full(producer.tail, producer.slots.capacity()));
        }
        producer.tail = producer.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(producer: &mut Producer<'_, Self, T, M>) {
        Self::flush(producer);
    }

    #[inline(always)]
    fn defer(_: &mut Producer<'_, Self, T, M>) {}

    #[inline(always)]
    fn flush(producer: &mut Producer<'_, Self, T, M>) {
        let first = producer.state.published;
        if first != producer.tail {
            // SYNC POINT: slot published. Pairs with Consumer::is_there.
            producer.slots.at(first).word.store_release(full(first, producer.slots.capacity()));
            producer.state.published = producer.tail;
        }
    }

    #[inline(always)]
    fn published(producer: &Producer<'_, Self, T, M>) -> u64 {
        producer.state.published
    }
}

/// The consumer owns the flagged messages from the head on.
pub struct Emptying {
    released: u64,
}

impl<T, M: Machine> OneConsumer<T, M> for Flagged {
    type Emptying = Emptying;

    #[inline(always)]
    fn indices_to_empty(_: &RingHeader<M::Word>, peer: &RingHeader<M::Word>) -> (u64, u64) {
        let head = peer.consumer.head.load();
        (head, head)
    }

    #[inline(always)]
    fn emptying(head: u64, _: u64) -> Emptying {
        Emptying { released: head }
    }

    #[inline]
    fn waiting(consumer: &Consumer<'_, Self, T, M>, most: usize) -> usize {
        (0..most.min(consumer.capacity())).take_while(|offset| consumer.is_there(*offset as u64)).count()
    }

    fn seen(consumer: &Consumer<'_, Self, T, M>, most: usize) -> Result<(u64, usize), M::Corrupt> {
        let waiting = Self::waiting(consumer, most);
        if waiting == 0 && consumer.state.released != consumer.head {
            // SYNC POINT: slot released. Pairs with the producer's poll.
            consumer.port.peer.consumer.head.store_release(consumer.head);
        }
        Ok((consumer.head, waiting))
    }

    #[inline(always)]
    fn next(consumer: &mut Consumer<'_, Self, T, M>) -> Result<(), PopError<M::Corrupt>> {
        if consumer.is_there(0) { Ok(()) } else { Err(PopError::Empty) }
    }

    #[inline(always)]
    fn ready(consumer: &mut Consumer<'_, Self, T, M>, most: usize) -> Result<usize, M::Corrupt> {
        Ok(Self::waiting(consumer, most))
    }

    #[inline(always)]
    fn release(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_pending(consumer);
    }

    #[inline(always)]
    fn defer_release(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_pending(consumer);
    }

    #[inline(always)]
    fn release_pending(consumer: &mut Consumer<'_, Self, T, M>) {
        // A redundant store would take the line from the producer.
        if consumer.state.released != consumer.head {
            consumer.state.released = consumer.head;
            // SYNC POINT: slot released. Pairs with the producer's poll.
            consumer.port.peer.consumer.head.store_release(consumer.head);
        }
    }

    #[inline(always)]
    fn released(consumer: &Consumer<'_, Self, T, M>) -> u64 {
        consumer.state.released
    }
}

impl<T, M: Machine> Producer<'_, Flagged, T, M> {
    /// Pushes the first of `values` that fit, and publishes them together; returns their number.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](crate::attach::Corrupt); nothing was pushed.
    pub fn push_slice(&mut self, values: &[T]) -> Result<usize, M::Corrupt>
    where
        T: Copy,
    {
        if self.free() < values.len() {
            self.refresh()?;
        }
        let count = self.free().min(values.len());
        for (_, value) in (0..count).zip(values) {
            Flagged::fill(self, *value);
        }
        Flagged::flush(self);
        Ok(count)
    }
}

impl<T, M: Machine> Consumer<'_, Flagged, T, M> {
    /// Pops as many values as fit and releases their slots together; returns their number.
    pub fn pop_slice(&mut self, values: &mut [T]) -> usize
    where
        T: Copy,
    {
        let count = Flagged::waiting(self, values.len());
        for (_, value) in (0..count).zip(values) {
            *value = Flagged::take(self);
        }
        Flagged::release_pending(self);
        count
    }

    /// Returns whether message `offset` after the next is available, if its predecessors are.
    #[inline(always)]
    #[must_use]
    pub fn is_there(&self, offset: u64) -> bool {
        let index = self.head.wrapping_add(offset);
        // SYNC POINT: slot published. Pairs with the producer's `flush`.
        self.slots.at(index).word.load_acquire() == full(index, self.slots.capacity())
    }
}

#[doc(hidden)]
impl<'a, T, M: Machine> Producer<'a, Flagged, T, M> {
    /// Sets the flag of the slot `offset` places after the next; [`publication`](Self::publication) makes it visible.
    ///
    /// # Safety
    ///
    /// `offset` is not 0 and below [`free`](Self::free); the slot is written before the batch is published.
    #[inline(always)]
    pub unsafe fn raise(&self, offset: u64) {
        let index = self.tail.wrapping_add(offset);
        self.slots.at(index).word.store(full(index, self.slots.capacity()));
    }

    /// Returns word and value that publish a batch, for [`Word::publish_all`].
    ///
    /// # Safety
    ///
    /// Only this value is stored to this word, once, after every lane wrote its slots and [set](Self::raise) their flags.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publication(&self) -> (&'a M::Word, u64) {
        (&self.slots.at(self.tail).word, full(self.tail, self.slots.capacity()))
    }

    /// Counts `count` slots as filled and published.
    ///
    /// # Safety
    ///
    /// At most [`free`](Self::free), and one lane stores their [`publication`](Self::publication).
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        self.tail = self.tail.wrapping_add(count);
        self.state.published = self.tail;
    }
}

#[doc(hidden)]
impl<T, M: Machine> Consumer<'_, Flagged, T, M> {
    /// Counts `count` slots as emptied and released; the caller stores their [`publication`](Self::publication).
    ///
    /// # Safety
    ///
    /// So many messages [are available](Self::is_there), as seen by any lane, and no lane still reads them.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        self.head = self.head.wrapping_add(count);
        self.state.released = self.head;
    }
}
