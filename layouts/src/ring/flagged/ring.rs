//! [`RingIn`] and [`Ring`]: header and slots in one value, for two threads or a `static`.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};

use super::{Consumer, Producer};
use crate::host::HostCell;
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
use crate::ring::Owned;
use crate::ring::drain::drop_all;
use crate::ring::storage::{capacity_of, slots_of};
use crate::ring::{LayoutError, RingFlags, RingHeader, Slot, Storage, WordSlot};
use crate::{Host, HostWord};

/// A ring of `N` values of any type, a power of two (checked at compile time).
///
/// What is left in it is dropped with it.
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::flagged::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
pub type Ring<T, const N: usize> = RingIn<T, [MaybeUninit<WordSlot<T>>; N]>;

/// A ring whose capacity is known at run time, on the heap.
#[cfg(feature = "alloc")]
pub type Boxed<T> = RingIn<T, alloc::boxed::Box<[MaybeUninit<WordSlot<T>>]>>;

/// A ring of values of any type, whose slots lie in `S`: in the ring itself ([`Ring`]), in memory that the caller lends, in a box.
///
/// Dropping the ring drops the values left in it. If one drop panics, the other values are still dropped.
///
/// ```
/// use core::mem::MaybeUninit;
/// use ringmem_layouts::ring::flagged::RingIn;
/// let mut memory = [const { MaybeUninit::uninit() }; 100];
/// let capacity = 64; // known at run time
/// let mut ring = RingIn::<String, _>::over(&mut memory[..capacity])?;
/// let (mut producer, mut consumer) = ring.split();
/// producer.push("hello".to_owned()).unwrap();
/// assert_eq!(consumer.pop().as_deref(), Ok("hello"));
/// # Ok::<(), ringmem_layouts::ring::LayoutError>(())
/// ```
#[repr(C)]
pub struct RingIn<T, S: Storage<WordSlot<T>>> {
    header: RingHeader<HostWord>,
    // INVARIANT: a power of two of them, their words initialised; those whose flags say so have values.
    slots: S,
    _values: PhantomData<T>,
}

/// A producer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedProducer<T> = Owned<Producer<'static, T, Host>>;

/// A consumer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedConsumer<T> = Owned<Consumer<'static, T, Host>>;

// SAFETY: without `split`, which takes `&mut`, nothing can be reached through it.
unsafe impl<T: Send, S: Storage<WordSlot<T>>> Sync for RingIn<T, S> {}

impl<T, const N: usize> Ring<T, N> {
    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// An empty ring whose indices begin at `start`: near `u64::MAX` a test sees them wrap.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        const { assert!(N.is_power_of_two(), "a ring's capacity must be a power of two") };
        let header = RingHeader::inline(RingFlags::FLAGGED, N as u64, size_of::<WordSlot<T>>(), offset_of!(Self, slots), start);
        Self { header, slots: [const { MaybeUninit::new(Slot::new(HostWord::new(0), HostCell::empty())) }; N], _values: PhantomData }
    }
}

impl<T, S: Storage<WordSlot<T>>> RingIn<T, S> {
    /// An empty ring over all of these slots.
    ///
    /// # Errors
    ///
    /// [`LayoutError::NotAPowerOfTwo`] for another number of slots.
    pub fn over(slots: S) -> Result<Self, LayoutError> {
        Self::over_starting_at(slots, 0)
    }

    /// As [`over`](Self::over), with indices that begin at `start`.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub fn over_starting_at(mut slots: S, start: u64) -> Result<Self, LayoutError> {
        let capacity = capacity_of(&slots)?;
        for slot in slots.as_mut() {
            slot.write(Slot::new(HostWord::new(0), HostCell::empty()));
        }
        // Nobody asks this header where its slots are.
        let header = RingHeader::inline(RingFlags::FLAGGED, capacity, size_of::<WordSlot<T>>(), 0, start);
        Ok(Self { header, slots, _values: PhantomData })
    }

    /// Its two ends. They may go to two threads; when both are gone it can be split again, with what is left in it.
    pub fn split(&mut self) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
        let Self { header, slots, .. } = &*self;
        let (slots, capacity) = slots_of(slots);
        // SAFETY: `&mut self` lends the ring to this one pair; so many slots, a power of two.
        let producer = unsafe { Producer::over(header, header, slots, capacity) };
        // SAFETY: as above; what has its flag up was pushed.
        let consumer = unsafe { Consumer::over(header, header, slots, capacity) };
        match (producer, consumer) {
            (Ok(producer), Ok(consumer)) => (producer.announce(), consumer.announce()),
            _ => unreachable!("flags are never out of range"),
        }
    }

    /// Its two ends, each of which holds the ring: they go to any thread or task, and the last of them drops what is left.
    #[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
    #[must_use]
    pub fn into_ends(self) -> (OwnedProducer<T>, OwnedConsumer<T>)
    where
        T: Send + 'static,
        S: Send + 'static,
    {
        crate::ring::owned::own(self, Self::split)
    }
}

impl<T, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, S: Storage<WordSlot<T>>> Drop for RingIn<T, S> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            let (_, mut consumer) = self.split();
            drop_all(|| consumer.peek(u64::MAX).map(|chunk| chunk.release(u64::MAX)).is_ok());
        }
    }
}
