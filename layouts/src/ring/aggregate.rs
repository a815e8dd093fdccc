//! Many producers of one SPSC ring, on one device. Warps use it through `ringmem-kernels`.
//!
//! 1. A producer reserves slots by one read-modify-write in device memory; only loads and stores cross the bus to the host.
//! 2. Reservations are published in order: each producer waits for [its turn](Producer::is_its_turn), with its own deadline. A producer that never
//!    publishes stops all later ones permanently.

use core::ptr::NonNull;

use crate::attach::{AttachError, Corrupt};
use crate::ring::Row;
use crate::ring::header::RingFlags;
use crate::ring::slots::{Slots, geometry_of_both};
use crate::{Counter, Machine, RingHeader, RingMessage, Word};

/// The producers' state, in device memory. Zeroed memory begins at index 0.
///
/// Safe code can only load the counters, which determine slot ownership.
///
/// ```compile_fail,E0616
/// # use ringmem_layouts as ringmem;
/// # use ringmem::{HostWord, Word, ring::aggregate::Aggregate};
/// let shared = Aggregate::<HostWord>::starting_at(0);
/// Word::store(&shared.reserved, 7); // would change the owners of slots
/// ```
#[repr(C, align(128))]
pub struct Aggregate<C = u64> {
    reserved: C,
    published: C,
    _reserved: [C; 14],
}

crate::layout_table! {
    impl<C> Aggregate<C>: size 128, align 128;
    0  reserved: C, "any producer";
    8  published: C, "the producer whose turn it is";
    16 _reserved: [C; 14], "none: zero";
}

impl<C: Word> Aggregate<C> {
    /// Returns the state of a ring that begins at `start`.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        Self { reserved: C::new(start), published: C::new(start), _reserved: core::array::from_fn(|_| C::new(0)) }
    }

    /// Returns the next index to reserve.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved.load()
    }

    /// Returns the next index to publish.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published.load()
    }
}

/// One of many producers of a ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// # use core::ptr::NonNull;
/// # use ringmem::ring::{BareSlot, spsc};
/// # use ringmem::{Host, HostWord, RingHeader, RingLayout, SlotCell, Word};
/// use ringmem::ring::aggregate::{Aggregate, Producer};
///
/// # let header = RingHeader::<HostWord>::new::<u64>(&RingLayout::of::<u64>(4)?, 0);
/// # let slots: [BareSlot<u64>; 4] = [0; 4].map(SlotCell::new);
/// # let slots = NonNull::from(&slots).cast();
/// let shared = Aggregate::<HostWord>::starting_at(0);
/// // SAFETY: only these producers and one consumer access the ring, which is empty and begins at 0.
/// let mut producer = unsafe { Producer::<u64, Host, _>::new(&header, &header, slots, &shared)? };
/// let (begin, count) = producer.reserve(1)?;
/// // SAFETY: the reservation is this producer's. It is written and published once, in its turn.
/// unsafe {
///     producer.accept(begin, count);
///     producer.row().at(0).with_mut(|slot| slot.write(7));
///     assert!(producer.is_its_turn());
///     HostWord::publish_all([producer.publication()]);
///     producer.pass();
/// }
/// # let mut consumer = unsafe { spsc::Consumer::<u64, Host>::new(&header, &header, slots)? };
/// assert_eq!(consumer.pop(), Ok(7)); // an `spsc::Consumer`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Producer<'a, T, M: Machine, C> {
    own: &'a RingHeader<M::Word>,
    peer: &'a RingHeader<M::Word>,
    shared: &'a Aggregate<C>,
    slots: Slots<'a, M::Cell<T>>,
    // INVARIANT: slots from `begin` to `end` are this producer's, released by the consumer.
    begin: u64,
    end: u64,
    head: u64,
}

impl<'a, T, M: Machine, C: Counter> Producer<'a, T, M, C> {
    /// Attaches to an SPSC ring: `own` is polled, `peer` is written.
    ///
    /// # Errors
    ///
    /// [`AttachError`], for either header.
    ///
    /// # Safety
    ///
    /// For `'a`, as many cells at `slots` as `own` says are valid and initialised; only one consumer and producers with this `shared` access them or
    /// the headers; `shared` began at the ring's first index.
    pub unsafe fn new(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<M::Cell<T>>,
        shared: &'a Aggregate<C>,
    ) -> Result<Self, AttachError>
    where
        T: RingMessage,
    {
        let layout = geometry_of_both::<T, _>(RingFlags::SPSC, own, peer)?;
        // SAFETY: the caller promises valid cells, only producers with this `shared`, and that it began at the first index; the geometry
        // was checked, so `capacity` is the ring's.
        Ok(unsafe { Self::over(own, peer, slots, layout.capacity(), shared) })
    }

    /// Attaches without checking the geometry.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new); `capacity` is the ring's, a power of two that fits `usize`.
    #[inline(always)]
    pub unsafe fn over(
        own: &'a RingHeader<M::Word>,
        peer: &'a RingHeader<M::Word>,
        slots: NonNull<M::Cell<T>>,
        capacity: u64,
        shared: &'a Aggregate<C>,
    ) -> Self {
        // SAFETY: the caller promises `capacity` valid cells for `'a`, a power of two that fits `usize`.
        let slots = unsafe { Slots::new(slots, capacity) };
        // SYNC POINT: slot released. Pairs with the consumer's release.
        let head = own.consumer.head.load_acquire();
        Self { own, peer, shared, slots, begin: head, end: head, head }
    }

    /// Returns the number of slots.
    #[must_use]
    #[inline(always)]
    pub const fn capacity(&self) -> u64 {
        self.slots.capacity()
    }

    /// Returns the messages up to this producer's last, as last polled, at most the capacity.
    #[must_use]
    #[inline(always)]
    pub fn known_unread(&self) -> u64 {
        self.end.wrapping_sub(self.head).min(self.capacity())
    }

    /// Returns the messages of all producers that the consumer has not popped, at most the capacity: a figure, from loads without
    /// ordering. This producer keeps nothing of it.
    #[must_use]
    #[inline(always)]
    pub fn unread(&self) -> u64 {
        let published = self.shared.published.load();
        let head = self.own.consumer.head.load();
        // The consumer may have popped messages that were published in between.
        let unread = published.wrapping_sub(head);
        if (unread as i64) < 0 { 0 } else { unread.min(self.capacity()) }
    }

    /// Reserves up to `most` slots; returns the first index and the number, perhaps 0. For one lane; others [`accept`](Self::accept) the result.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
    #[inline(always)]
    pub fn reserve(&mut self, most: u64) -> Result<(u64, u64), Corrupt> {
        let capacity = self.capacity();
        loop {
            let begin = self.shared.reserved.load();
            let known = begin.wrapping_sub(self.head);
            if known > capacity || capacity - known < most {
                // SYNC POINT: slot released. Pairs with the consumer's release.
                self.head = self.own.consumer.head.load_acquire();
            }
            let used = begin.wrapping_sub(self.head);
            if used > capacity {
                // The head may be past slots reserved and published since.
                if self.shared.reserved.load() == begin {
                    return Err(Corrupt { head: self.head, tail: begin, capacity });
                }
                continue;
            }
            let count = most.min(capacity - used);
            // Lock-free: each failure is another producer's success.
            if count == 0 || self.shared.reserved.exchange_if(begin, begin.wrapping_add(count)).is_ok() {
                return Ok((begin, count));
            }
        }
    }

    /// Accepts a reservation of another lane.
    ///
    /// # Safety
    ///
    /// It came from [`reserve`](Self::reserve) on this end, and a barrier ordered that lane's loads before this call.
    #[inline(always)]
    pub const unsafe fn accept(&mut self, begin: u64, count: u64) {
        self.begin = begin;
        self.end = begin.wrapping_add(count);
    }

    /// Returns the slots of the reservation.
    #[inline(always)]
    #[must_use]
    pub const fn row(&self) -> Row<'a, M::Cell<T>> {
        // SAFETY: a slot is its cell.
        unsafe { self.slots.row(self.begin, 0) }
    }

    /// Returns whether all earlier reservations are published.
    #[inline(always)]
    #[must_use]
    pub fn is_its_turn(&self) -> bool {
        // SYNC POINT: turn passed. Pairs with Producer::pass.
        self.shared.published.load_acquire() == self.begin
    }

    /// Returns word and value that publish the reservation, for [`Word::publish_all`].
    ///
    /// # Safety
    ///
    /// Only this value is stored to this word, once, in [its turn](Self::is_its_turn), after every lane wrote its slots.
    #[inline(always)]
    #[must_use]
    pub unsafe fn publication(&self) -> (&'a M::Word, u64) {
        (&self.peer.producer.tail, self.end)
    }

    /// Passes the turn on.
    ///
    /// # Safety
    ///
    /// The [`publication`](Self::publication) is stored; one lane calls this once.
    #[inline(always)]
    pub unsafe fn pass(&self) {
        // SYNC POINT: turn passed. Pairs with Producer::is_its_turn.
        self.shared.published.add_release(self.end.wrapping_sub(self.begin));
    }
}
