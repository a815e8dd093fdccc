//! [`RingIn`] and [`Ring`]: header and slots in one value, for threads or a `static`.

use core::mem::MaybeUninit;

use super::{Consumer, Producer};
use crate::Host;
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
use crate::ring::Owned;
use crate::ring::{LayoutError, RingFlags, Storage, WordSlot, mpmc};

/// A ring of `N` values of any type, a power of two (checked at compile time).
///
/// What is left in it is dropped with it.
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::mpsc::Ring::<u8, 6>::new(); // 6 is no power of two
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
/// use ringmem_layouts::ring::mpsc::RingIn;
/// let mut memory = [const { MaybeUninit::uninit() }; 100];
/// let capacity = 64; // known at run time
/// let mut ring = RingIn::<String, _>::over(&mut memory[..capacity])?;
/// let (mut producer, mut consumer) = ring.split();
/// producer.clone().push("hello".to_owned()).unwrap();
/// assert_eq!(consumer.pop().as_deref(), Ok("hello"));
/// # Ok::<(), ringmem_layouts::ring::LayoutError>(())
/// ```
#[repr(transparent)]
pub struct RingIn<T, S: Storage<WordSlot<T>>>(mpmc::RingIn<T, S>);

/// A producer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedProducer<T> = Owned<Producer<'static, T, Host>>;

/// A consumer that holds its ring.
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub type OwnedConsumer<T> = Owned<Consumer<'static, T, Host>>;

impl<T, const N: usize> Ring<T, N> {
    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// An empty ring whose indices begin at `start`: near `u64::MAX` a test sees them wrap.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        Self(mpmc::Ring::of_kind(RingFlags::MPSC, start))
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
    pub fn over_starting_at(slots: S, start: u64) -> Result<Self, LayoutError> {
        mpmc::RingIn::of_kind_over(RingFlags::MPSC, slots, start).map(Self)
    }

    /// Its two ends; the producer can be cloned. When all are gone it can be split again, with what is left in it.
    pub fn split(&mut self) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
        let turns = self.0.turns();
        // SAFETY: `&mut self` lends the ring to this one consumer.
        (Producer::at(turns), unsafe { Consumer::at(turns) })
    }

    /// As `split`, with handles that hold the ring: they go to any thread or task, and the last of them drops what is left.
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
