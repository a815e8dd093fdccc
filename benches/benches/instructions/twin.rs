//! A copy of the SPSC ring without one part: the `CHECK` of a peer's index, the second header pointer, or the header's other fields.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::spsc::{PopError, PushError};
use ringmem_layouts::ring::{RingHeader, RingLayout};
use ringmem_layouts::{CacheLineAligned, HostWord};

use crate::CAPACITY;
use crate::kind::{Spsc, Work};
use crate::plain::Plain;

pub trait Indices: Sync + 'static {
    fn new() -> Self;
    fn tail(&self) -> &AtomicU64;
    fn head(&self) -> &AtomicU64;
}

pub struct Header(RingHeader<HostWord>);

impl Indices for Header {
    fn new() -> Self {
        Self(RingHeader::new::<u64>(&RingLayout::of::<u64>(CAPACITY as u64).expect("a power of two"), 0))
    }
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        &self.0.producer.tail
    }
    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        &self.0.consumer.head
    }
}

pub struct Bare([CacheLineAligned<AtomicU64>; 2]);

impl Indices for Bare {
    fn new() -> Self {
        Self([const { CacheLineAligned::new(AtomicU64::new(0)) }; 2])
    }
    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        &self.0[0]
    }
    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        &self.0[1]
    }
}

pub trait Headers: Copy + Send {
    type Of: Indices;
    fn both(header: &'static Self::Of) -> Self;
    fn own(&self) -> &'static Self::Of;
    fn peer(&self) -> &'static Self::Of;
}

macro_rules! headers {
    ($(#[$doc:meta])* $name:ident { $own:ident, $peer:ident } = $($field:ident),*) => {
        $(#[$doc])*
        pub struct $name<H: 'static> {
            $($field: &'static H,)*
        }
        impl<H> Clone for $name<H> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<H> Copy for $name<H> {}
        impl<H: Indices> Headers for $name<H> {
            type Of = H;
            fn both(header: &'static H) -> Self {
                Self { $($field: header,)* }
            }
            #[inline(always)]
            fn own(&self) -> &'static H {
                self.$own
            }
            #[inline(always)]
            fn peer(&self) -> &'static H {
                self.$peer
            }
        }
    };
}

headers!(Two { own, peer } = own, peer);
headers!(One { both, both } = both);

struct End<T, P> {
    headers: P,
    slots: NonNull<UnsafeCell<MaybeUninit<T>>>,
    mask: u64,
    index: u64,
    seen: u64,
}

// SAFETY: one thread uses both ends; it may differ from their creator.
unsafe impl<T: Send, P: Send> Send for End<T, P> {}

impl<T: Copy, P: Headers> End<T, P> {
    #[inline(always)]
    fn slot(&self) -> *mut T {
        // SAFETY: the masked index is below the capacity; that many slots were leaked.
        unsafe { self.slots.add((self.index & self.mask) as usize).as_ref().get().cast() }
    }

    #[inline]
    fn push<const CHECK: bool>(&mut self, value: T) -> Result<(), PushError<T, Corrupt>> {
        if self.seen.wrapping_sub(self.index) == 0 {
            let head = self.headers.own().head().load(Acquire);
            let (used, capacity) = (self.index.wrapping_sub(head), self.mask + 1);
            if CHECK && used > capacity {
                return Err(PushError::Corrupt(value, Corrupt { head, tail: self.index, capacity }));
            }
            if used == capacity {
                return Err(PushError::Full(value));
            }
            self.seen = head.wrapping_add(capacity);
        }
        // SAFETY: the producer owns the free slot.
        unsafe { self.slot().write(value) };
        self.index = self.index.wrapping_add(1);
        self.headers.peer().tail().store(self.index, Release);
        Ok(())
    }

    #[inline]
    fn pop<const CHECK: bool>(&mut self) -> Result<T, PopError<Corrupt>> {
        if self.seen.wrapping_sub(self.index) == 0 {
            let tail = self.headers.own().tail().load(Acquire);
            let (used, capacity) = (tail.wrapping_sub(self.index), self.mask + 1);
            if CHECK && used.wrapping_sub(1) >= capacity {
                return Err(refusal(self.index, tail, capacity));
            }
            if !CHECK && used == 0 {
                return Err(PopError::Empty);
            }
            self.seen = tail;
        }
        // SAFETY: the consumer owns the filled slot.
        let value = unsafe { self.slot().read() };
        self.index = self.index.wrapping_add(1);
        self.headers.peer().head().store(self.index, Release);
        Ok(value)
    }
}

#[cold]
fn refusal(head: u64, tail: u64, capacity: u64) -> PopError<Corrupt> {
    if head == tail { PopError::Empty } else { PopError::Corrupt(Corrupt { head, tail, capacity }) }
}

pub struct Twin<const CHECK: bool, P>(std::marker::PhantomData<P>);

impl<T: Plain, const CHECK: bool, P: Headers> Spsc<T> for Twin<CHECK, P> {
    fn spsc(work: impl Work<T>) -> f64 {
        let headers = P::both(Box::leak(Box::new(P::Of::new())));
        let slots: Box<[_; CAPACITY]> = Box::new([const { UnsafeCell::new(MaybeUninit::<T>::uninit()) }; CAPACITY]);
        let slots = NonNull::from(Box::leak(slots)).cast();
        let end = |seen| End::<T, P> { headers, slots, mask: CAPACITY as u64 - 1, index: 0, seen };
        let (mut producer, mut consumer) = (end(CAPACITY as u64), end(0));
        work.run(move |value| producer.push::<CHECK>(value).is_ok(), move || consumer.pop::<CHECK>().ok())
    }
}
