//! [`Ring`]: header and slots in one value, for threads or a `static`.

use super::{Consumer, Producer};
use crate::Host;
use crate::ring::{RingFlags, mpmc};

/// A ring of `N` values of any type, a power of two (checked at compile time).
///
/// What is left in it is dropped with it.
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::mpsc::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
#[repr(transparent)]
pub struct Ring<T, const N: usize>(mpmc::Ring<T, N>);

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

    /// Its two ends; the producer can be cloned. When all are gone it can be split again, with what is left in it.
    pub fn split(&mut self) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
        let turns = self.0.turns();
        // SAFETY: `&mut self` lends the ring to this one consumer.
        (Producer::at(turns), unsafe { Consumer::at(turns) })
    }
}

impl<T, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self::new()
    }
}
