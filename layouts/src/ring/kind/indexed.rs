//! The slot protocol of SPSC rings: the other end's view of a slot is the index alone.
//!
//! A push writes the slot, advances `tail`, then stores it with release: until that store the consumer sees the old index, and no slot at or after it. A pop is
//! the mirror image, with `head`. A grant or a batch *defers* the store, for several slots. If it is forgotten, the next use of the end that looks for room or
//! publishes, or the end's drop, stores the index ([`publish_deferred`](OneProducer::publish_deferred)); so an end that is never used or dropped again keeps
//! its slots to itself. Lanes of a warp advance their copies themselves, and one of them stores the index (`publication`).

use core::hint::cold_path;

use super::sealed::Sealed;
use super::{InPlace, Kind, OneConsumer, OneProducer};
use crate::attach::{Corrupt, Corruption};
use crate::ring::error::PopError;
use crate::ring::header::used;
use crate::ring::pace::Pace;
use crate::ring::slots::Slots;
use crate::ring::{Consumer, Producer, RingFlags, RingHeader, value};
use crate::{Machine, SliceCell, SlotCell, Word};

/// The kind of [`spsc`](crate::ring::spsc) rings; `A` accesses the payload.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::Local;
/// use ringmem::ring::{Consumer, Indexed, RingFlags, spsc};
///
/// let mut ring = spsc::Ring::<u32, 4>::new();
/// let (_, consumer): (_, Consumer<'_, Indexed, u32, Local>) = ring.split(); // `spsc::Consumer<'_, u32, Local>`
/// assert_eq!(consumer.kind(), RingFlags::SPSC);
/// ```
pub struct Indexed<A = Plain>(A);

/// How payload is written and read.
pub trait Access<T, M: Machine>: Sealed {
    /// # Safety
    ///
    /// The slot is the caller's.
    #[doc(hidden)]
    unsafe fn write(cell: &M::Cell<T>, value: T);

    /// # Safety
    ///
    /// The slot is initialised and the caller's, and its value is read once.
    #[doc(hidden)]
    unsafe fn read(cell: &M::Cell<T>) -> T;
}

/// The other end is trusted not to access payload meanwhile.
pub struct Plain(());

impl Sealed for Plain {}
impl<T, M: Machine> Access<T, M> for Plain {
    #[inline(always)]
    unsafe fn write(cell: &M::Cell<T>, value: T) {
        // SAFETY: the caller promises that the slot is its own, so nothing else accesses the cell; a cell's pointer is valid for writes.
        cell.with_mut(|place| unsafe { value::write(place, value) });
    }
    #[inline(always)]
    unsafe fn read(cell: &M::Cell<T>) -> T {
        // SAFETY: the caller promises that the slot is its own and initialised, and that its value is read once, so no second owner of the
        // value arises.
        cell.with(|place| unsafe { value::read(place) })
    }
}

impl<A> Sealed for Indexed<A> {}
impl InPlace for Indexed {}

impl<A: Access<T, M>, T, M: Machine> Kind<T, M> for Indexed<A> {
    const FLAGS: RingFlags = RingFlags::SPSC;
    type Slot = M::Cell<T>;
    const CELL: usize = 0;

    #[inline(always)]
    fn cell(slot: &M::Cell<T>) -> &M::Cell<T> {
        slot
    }
}

pub struct Filling {
    pace: Pace,
    /// A grant or batch has not ended; if forgotten, its messages are unpublished.
    is_deferring: bool,
    /// The tail that the consumer can see, while a grant or batch exists. Without one this field means nothing: the consumer sees the producer's `tail`, or,
    /// after a forgotten one, an older index until the next store.
    published: u64,
}

impl Filling {
    pub(in crate::ring) const fn new(tail: u64) -> Self {
        Self { pace: Pace::new(tail), is_deferring: false, published: tail }
    }
}

impl<A: Access<T, M>, T, M: Machine> OneProducer<T, M> for Indexed<A> {
    type Filling = Filling;

    #[inline(always)]
    fn indices_to_fill(own: &RingHeader<M::Word>, peer: &RingHeader<M::Word>, _: &Slots<'_, Self::Slot>) -> (u64, u64) {
        // SYNC POINT: slot released. Pairs with the consumer's `release`.
        (peer.producer.tail.load(), own.consumer.head.load_acquire())
    }

    #[inline(always)]
    fn filling(tail: u64) -> Filling {
        Filling::new(tail)
    }

    #[inline(always)]
    fn room(producer: &mut Producer<'_, Self, T, M>) -> Result<usize, M::Corrupt> {
        Self::publish_deferred(producer);
        if producer.free() > 0 {
            return producer.refresh();
        }
        let due = producer.state.pace.is_due(producer.end);
        if due {
            cold_path();
            producer.state.pace.wait();
        }
        let head = producer.polled();
        if due {
            cold_path();
            let found = head.wrapping_add(producer.slots.capacity()).wrapping_sub(producer.end);
            producer.state.pace = producer.state.pace.seen::<T>(producer.end, producer.slots.mask(), found);
        }
        producer.accepted(head).or_else(|corrupt| M::Corrupt::found(corrupt, 0))
    }

    #[inline(always)]
    fn fill(producer: &mut Producer<'_, Self, T, M>, value: T) {
        producer.slots.prefetch_ahead::<true>(producer.tail, producer.free());
        // SAFETY: by the invariant this end's while `free` is not 0, as callers checked.
        unsafe { A::write(producer.slots.at(producer.tail), value) };
        producer.tail = producer.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(producer: &mut Producer<'_, Self, T, M>) {
        // SYNC POINT: slot published. Pairs with the consumer's poll.
        producer.port.peer.producer.tail.store_release(producer.tail);
    }

    #[inline(always)]
    fn defer(producer: &mut Producer<'_, Self, T, M>) {
        Self::publish_deferred(producer);
        producer.state.is_deferring = true;
        producer.state.published = producer.tail;
    }

    #[inline(always)]
    fn flush(producer: &mut Producer<'_, Self, T, M>) {
        // A redundant store would take the line from the other end.
        if producer.state.published != producer.tail {
            producer.state.published = producer.tail;
            Self::publish(producer);
        }
    }

    #[inline(always)]
    fn end_deferral(producer: &mut Producer<'_, Self, T, M>) {
        Self::flush(producer);
        producer.state.is_deferring = false;
    }

    #[inline(always)]
    fn publish_deferred(producer: &mut Producer<'_, Self, T, M>) {
        // Also if nothing is unpublished: a comparison with `published` would take one more register of a loop.
        if producer.state.is_deferring {
            Self::publish(producer);
        }
    }

    #[inline(always)]
    fn published(producer: &Producer<'_, Self, T, M>) -> u64 {
        producer.state.published
    }
}

pub struct Emptying {
    pace: Pace,
    // INVARIANT: tail - head <= capacity, wrapping; the slots from head to tail are initialised and this end's.
    tail: u64,
    /// A batch has not ended; if forgotten, its slots are unreleased.
    is_deferring: bool,
    /// The head that the producer can see, while a batch exists. Without one this field means nothing: the producer sees the consumer's `head`, or, after a
    /// forgotten one, an older index until the next store.
    released: u64,
}

impl Emptying {
    pub(in crate::ring) const fn new(head: u64, tail: u64) -> Self {
        Self { tail, pace: Pace::new(head), is_deferring: false, released: head }
    }
}

impl<A: Access<T, M>, T, M: Machine> OneConsumer<T, M> for Indexed<A> {
    type Emptying = Emptying;

    #[inline(always)]
    fn indices_to_empty(own: &RingHeader<M::Word>, peer: &RingHeader<M::Word>) -> (u64, u64) {
        // SYNC POINT: slot published. Pairs with the producer's `publish`.
        (peer.consumer.head.load(), own.producer.tail.load_acquire())
    }

    #[inline(always)]
    fn emptying(head: u64, tail: u64) -> Emptying {
        Emptying::new(head, tail)
    }

    #[inline(always)]
    fn waiting(consumer: &Consumer<'_, Self, T, M>, most: usize) -> usize {
        consumer.polled().wrapping_sub(consumer.head).min(most as u64) as usize
    }

    #[inline]
    fn seen(consumer: &Consumer<'_, Self, T, M>, most: usize) -> Result<(u64, usize), M::Corrupt> {
        if consumer.available() >= most {
            return Ok((consumer.head, most));
        }
        let waiting = used(consumer.head, consumer.polled(), consumer.slots.capacity()).or_else(|corrupt| M::Corrupt::found(corrupt, 0))?;
        if waiting == 0 && consumer.state.is_deferring {
            // Releases the slots of a forgotten batch, for which the producer may wait.
            // SYNC POINT: slot released. Pairs with the producer's poll.
            consumer.port.peer.consumer.head.store_release(consumer.head);
        }
        Ok((consumer.head, waiting.min(most as u64) as usize))
    }

    #[inline(always)]
    fn next(consumer: &mut Consumer<'_, Self, T, M>) -> Result<(), PopError<M::Corrupt>> {
        if consumer.available() > 0 {
            return Ok(());
        }
        let tail = consumer.poll_paced();
        // Fewest instructions for one message.
        if tail != consumer.head.wrapping_add(1) {
            cold_path();
            // One comparison for empty and corrupt: zero wraps.
            if tail.wrapping_sub(consumer.head).wrapping_sub(1) > consumer.slots.mask() {
                return Err(nothing(consumer.head, tail, consumer.slots.mask()));
            }
        }
        consumer.state.tail = tail;
        Ok(())
    }

    #[inline(always)]
    fn ready(consumer: &mut Consumer<'_, Self, T, M>, most: usize) -> Result<usize, M::Corrupt> {
        if consumer.available() < most {
            consumer.poll_for_more()?;
        }
        Ok(most.min(consumer.available()))
    }

    #[inline(always)]
    fn take(consumer: &mut Consumer<'_, Self, T, M>) -> T {
        consumer.slots.prefetch_ahead::<false>(consumer.head, consumer.available());
        // SAFETY: by the invariant initialised and this end's while `available` is not 0, as callers checked; advancing prevents a second read.
        let value = unsafe { A::read(consumer.slots.at(consumer.head)) };
        consumer.head = consumer.head.wrapping_add(1);
        value
    }

    #[inline(always)]
    fn release(consumer: &mut Consumer<'_, Self, T, M>) {
        // SYNC POINT: slot released. Pairs with the producer's poll.
        consumer.port.peer.consumer.head.store_release(consumer.head);
    }

    #[inline(always)]
    fn defer_release(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_deferred(consumer);
        consumer.state.is_deferring = true;
        consumer.state.released = consumer.head;
    }

    #[inline(always)]
    fn release_pending(consumer: &mut Consumer<'_, Self, T, M>) {
        // As in `flush`.
        if consumer.state.released != consumer.head {
            consumer.state.released = consumer.head;
            Self::release(consumer);
        }
    }

    #[inline(always)]
    fn end_release_deferral(consumer: &mut Consumer<'_, Self, T, M>) {
        Self::release_pending(consumer);
        consumer.state.is_deferring = false;
    }

    #[inline(always)]
    fn release_deferred(consumer: &mut Consumer<'_, Self, T, M>) {
        // As in `publish_deferred`.
        if consumer.state.is_deferring {
            Self::release(consumer);
        }
    }

    #[inline(always)]
    fn released(consumer: &Consumer<'_, Self, T, M>) -> u64 {
        consumer.state.released
    }
}

#[cold]
fn nothing<C: Corruption>(head: u64, tail: u64, mask: u64) -> PopError<C> {
    if head == tail {
        return PopError::Empty;
    }
    C::found(Corrupt { head, tail, capacity: mask + 1 }, PopError::Empty).unwrap_or_else(PopError::Corrupt)
}

impl<T, M: Machine<Cell<T>: SliceCell<T>>> Producer<'_, Indexed, T, M> {
    /// Pushes the first of `values` that fit, and publishes them together; returns their number.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was pushed. The messages of a forgotten batch may have been published.
    pub fn push_slice(&mut self, values: &[T]) -> Result<usize, M::Corrupt>
    where
        T: Copy,
    {
        if self.free() < values.len() {
            Indexed::room(self)?;
        }
        let count = values.len().min(self.free());
        let first = self.slots.before_wrap(self.tail, count);
        let (head, rest) = values[..count].split_at(first);
        for (index, run) in [(self.tail, head), (self.tail.wrapping_add(first as u64), rest)] {
            let slots = self.slots.run(index);
            // SAFETY: `run` is before the wrap and within the free slots.
            unsafe { slots.as_ptr().copy_from_nonoverlapping(run.as_ptr(), run.len()) };
        }
        self.tail = self.tail.wrapping_add(count as u64);
        // A redundant store would take the line from the other end; a forgotten batch may have left slots.
        if count > 0 || self.state.is_deferring {
            Indexed::publish(self);
        }
        Ok(count)
    }
}

impl<A: Access<T, M>, T, M: Machine> Consumer<'_, Indexed<A>, T, M> {
    /// Returns the messages known to wait; [`refresh`](Self::refresh) polls.
    #[must_use]
    #[inline(always)]
    pub const fn available(&self) -> usize {
        self.state.tail.wrapping_sub(self.head) as usize
    }

    /// Polls the producer's index; returns the number of waiting messages.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; this end keeps its last index.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, M::Corrupt> {
        let tail = self.polled();
        self.accepted(tail).or_else(|corrupt| M::Corrupt::found(corrupt, self.available()))
    }

    fn poll_for_more(&mut self) -> Result<usize, M::Corrupt> {
        if self.available() > 0 {
            return self.refresh();
        }
        let tail = self.poll_paced();
        self.accepted(tail).or_else(|corrupt| M::Corrupt::found(corrupt, 0))
    }

    #[inline(always)]
    fn poll_paced(&mut self) -> u64 {
        let due = self.state.pace.is_due(self.head);
        if due {
            cold_path();
            self.state.pace.wait();
        }
        let tail = self.polled();
        if due {
            cold_path();
            self.state.pace = self.state.pace.seen::<T>(self.head, self.slots.mask(), tail.wrapping_sub(self.head));
        }
        tail
    }

    #[inline(always)]
    fn polled(&self) -> u64 {
        // SYNC POINT: slot published. Pairs with the producer's `publish`.
        self.port.own.producer.tail.load_acquire()
    }

    #[inline(always)]
    fn accepted(&mut self, tail: u64) -> Result<usize, Corrupt> {
        let used = used(self.head, tail, self.slots.capacity())?;
        self.state.tail = tail;
        Ok(used as usize)
    }
}

impl<T, M: Machine<Cell<T>: SliceCell<T>>> Consumer<'_, Indexed, T, M> {
    /// Pops as many values as fit and releases their slots together; returns their number.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing was popped.
    pub fn pop_slice(&mut self, values: &mut [T]) -> Result<usize, M::Corrupt>
    where
        T: Copy,
    {
        if self.available() < values.len() {
            self.poll_for_more()?;
        }
        let count = values.len().min(self.available());
        let first = self.slots.before_wrap(self.head, count);
        let (head, rest) = values[..count].split_at_mut(first);
        for (index, run) in [(self.head, head), (self.head.wrapping_add(first as u64), rest)] {
            let slots = self.slots.run(index);
            // SAFETY: `run` is before the wrap and within the filled slots.
            unsafe { slots.as_ptr().copy_to_nonoverlapping(run.as_mut_ptr(), run.len()) };
        }
        self.head = self.head.wrapping_add(count as u64);
        // As in `push_slice`.
        if count > 0 || self.state.is_deferring {
            Indexed::release(self);
        }
        Ok(count)
    }

    /// The first `count` messages are present.
    pub(in crate::ring) fn runs(&self, count: usize) -> [&[T]; 2] {
        let first = self.slots.before_wrap(self.head, count);
        let run = |index: u64, count: usize| {
            // SAFETY: `count` initialised slots before the wrap; not released while borrowed.
            unsafe { core::slice::from_raw_parts(self.slots.run(index).as_ptr(), count) }
        };
        [run(self.head, first), run(self.head.wrapping_add(first as u64), count - first)]
    }
}

#[doc(hidden)]
impl<'a, T, M: Machine> Producer<'a, Indexed, T, M> {
    /// Counts `count` slots as filled, unpublished.
    ///
    /// # Safety
    ///
    /// At most [`free`](Self::free), and all are written, by any lane.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        debug_assert!(count <= self.free() as u64);
        self.tail = self.tail.wrapping_add(count);
    }

    /// Returns word and value that publish the filled slots, for [`Word::publish_all`].
    ///
    /// # Safety
    ///
    /// Only this value is stored to this word, once, after every lane has finished with the slots.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publication(&self) -> (&'a M::Word, u64) {
        (&self.port.peer.producer.tail, self.tail)
    }
}

#[doc(hidden)]
impl<'a, T, M: Machine> Consumer<'a, Indexed, T, M> {
    /// Returns the producer's index in memory.
    #[inline(always)]
    #[must_use]
    pub fn poll(&self) -> u64 {
        self.polled()
    }

    /// Accepts a polled index; returns the number of waiting messages.
    ///
    /// # Errors
    ///
    /// [`Corrupt`]; nothing changes.
    ///
    /// # Safety
    ///
    /// `tail` came from [`poll`](Self::poll) on this ring, and a barrier ordered that load before this lane's accesses.
    #[inline(always)]
    pub unsafe fn accept(&mut self, tail: u64) -> Result<usize, Corrupt> {
        self.accepted(tail)
    }

    /// Counts `count` slots as emptied, unreleased.
    ///
    /// # Safety
    ///
    /// At most [`available`](Self::available), and no lane reads them any more.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u64) {
        debug_assert!(count <= self.available() as u64);
        self.head = self.head.wrapping_add(count);
    }
}
