//! [`Shared`]: a ring and the values in it, when its ends share ownership.
//!
//! The ring lives until its last end is dropped, but values in it are dropped with the last *consumer*: nothing can pop them any more, and
//! another thread may wait for their drop, such as a caller for the answer that a value carries the sender of.
//!
//! A producer may push while the last consumer leaves. Such a value must not stay either, so whatever happens last discards it:
//!
//! | the consumer | a producer that [looks](Held::discard_if_abandoned) after a push |
//! |---|---|
//! | 1. closes its end | 1. publishes the value |
//! | 2. fence, and a read-modify-write of the word on which consumers sleep | 2. the same, or one of them |
//! | 3. discards the published values | 3. discards them if the end is closed |
//!
//! Either the value is published before step 3 of the consumer, or the producer sees the closed end: step 2 orders one store before the other
//! side's load. A bare producer does not look after each push, because the look loads a line that the consumer writes; it looks when it is
//! dropped. The ends of `ringmem::wait` look after each push of a type that needs drop.
//!
//! One thread discards at a time, as the only consumer. A thread that comes meanwhile asks it to look again, and does not wait: a drop of a
//! value may drop an end of the same ring, on the same thread.

use alloc::sync::Arc;
use core::marker::PhantomData;
use core::mem::needs_drop;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use core::sync::atomic::{AtomicU8, fence};

use crate::ring::host::HostKind;
use crate::ring::kind::OneConsumer;
use crate::ring::slots::Slots;
use crate::ring::{Consumer, Mpmc, RingHeader, mpmc, owner};
use crate::{HostWord, Local, RmwWord};

/// What the ends keep alive.
pub(super) trait Held: Send + Sync {
    /// Drops the published values if no consumer is left.
    fn discard_if_abandoned(&self);
}

/// How to find and drop the values in a ring.
pub(super) trait Values: Send + Sync {
    fn are_abandoned(&self) -> bool;

    /// # Safety
    ///
    /// They are abandoned, the ring lives, and no other thread calls it meanwhile.
    unsafe fn discard(&self);
}

/// Bytes.
impl Values for () {
    fn are_abandoned(&self) -> bool {
        false
    }
    unsafe fn discard(&self) {}
}

/// The values of a ring of kind `K`.
pub(super) struct ValuesOf<K: HostKind<T>, T> {
    // INVARIANT: 'static stands for the lifetime of the ring. Both were taken from the consumer, which is closed once it is dropped.
    header: &'static RingHeader<HostWord>,
    slots: NonNull<K::Slot>,
    capacity: u64,
    _values: PhantomData<fn(T)>,
}

// SAFETY: it accesses words atomically, and values only as the ring's one consumer, on any thread.
unsafe impl<K: HostKind<T>, T: Send> Send for ValuesOf<K, T> {}
// SAFETY: it accesses words atomically, and values only in `discard`, which one thread calls at a time.
unsafe impl<K: HostKind<T>, T: Send> Sync for ValuesOf<K, T> {}

impl<K: HostKind<T>, T> ValuesOf<K, T> {
    fn new(header: &'static RingHeader<HostWord>, slots: Slots<'static, K::Slot>) -> Self {
        Self { header, slots: slots.base(), capacity: slots.capacity(), _values: PhantomData }
    }
}

/// A consumer knows the ring by the same references as these values.
pub(super) trait Consumes<K: HostKind<T>, T> {
    fn values(&self) -> ValuesOf<K, T>;
}

impl<K: HostKind<T> + OneConsumer<T, Local>, T> Consumes<K, T> for Consumer<'static, K, T, Local> {
    fn values(&self) -> ValuesOf<K, T> {
        ValuesOf::new(self.port.own, self.slots)
    }
}

impl<T> Consumes<Mpmc, T> for mpmc::Consumer<'static, T, Local> {
    fn values(&self) -> ValuesOf<Mpmc, T> {
        ValuesOf::new(self.turns.header, self.turns.slots)
    }
}

impl<K: HostKind<T>, T: Send> Values for ValuesOf<K, T> {
    fn are_abandoned(&self) -> bool {
        needs_drop::<T>() && owner::is_closed(&self.header.consumer.owner)
    }

    unsafe fn discard(&self) {
        // SYNC POINT: value published, consumer closed. Pairs with the fence or the read-modify-write of `Waiting::ring` in ringmem.
        fence(SeqCst);
        RmwWord::fetch_add(&self.header.consumer.waiting, 0);
        // SAFETY: the caller promises that the values are abandoned, that the ring lives and that no other thread is here. No consumer is
        // left, and none comes: only a consumer can be cloned to one.
        unsafe { K::discard(self.header, self.slots, self.capacity) };
    }
}

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
/// Running, and asked to look again.
const ASKED: u8 = 2;

pub(super) struct Shared<R, V> {
    ring: R,
    values: Option<V>,
    discards: AtomicU8,
}

impl<R: Send + Sync + 'static, V: Values + 'static> Shared<R, V> {
    /// Moves the ring to the heap and splits it there.
    pub(super) fn split<P, C>(ring: R, split: impl FnOnce(&'static mut R) -> (P, C, V)) -> (P, C, Arc<dyn Held>) {
        let place = Arc::into_raw(Arc::new(Self { ring, values: None, discards: AtomicU8::new(IDLE) })).cast_mut();
        // SAFETY: just created, and exclusive: until its drop, only the ends and `values` access the ring. `Owned` keeps bare ends from outliving it.
        let (producer, consumer, values) = split(unsafe { &mut (*place).ring });
        // SAFETY: nothing else refers to this field yet.
        unsafe { (*place).values = Some(values) };
        // SAFETY: from `into_raw`, once.
        (producer, consumer, unsafe { Arc::from_raw(place.cast_const()) })
    }
}

impl<R: Send + Sync, V: Values> Held for Shared<R, V> {
    fn discard_if_abandoned(&self) {
        let Some(values) = self.values.as_ref().filter(|values| values.are_abandoned()) else { return };
        // SYNC POINT: asked. Pairs with the swap and the compare-exchange below: what was published before is then seen.
        if self.discards.swap(ASKED, AcqRel) != IDLE {
            return;
        }
        let running = Running { discards: &self.discards, values };
        running.run();
        core::mem::forget(running);
    }
}

/// Continues after a panic of a value's drop: another panic then aborts, as it does in a `Vec`.
struct Running<'s, V: Values> {
    discards: &'s AtomicU8,
    values: &'s V,
}

impl<V: Values> Running<'_, V> {
    fn run(&self) {
        loop {
            self.discards.swap(RUNNING, AcqRel);
            // SAFETY: abandoned, as `discard_if_abandoned` found; that call keeps the ring. Only the thread that found IDLE is here.
            unsafe { self.values.discard() };
            if self.discards.compare_exchange(RUNNING, IDLE, AcqRel, Acquire).is_ok() {
                return;
            }
        }
    }
}

impl<V: Values> Drop for Running<'_, V> {
    fn drop(&mut self) {
        self.run();
    }
}
