//! [`Ring`]: header and slots in one value, for two threads or a `static`.

use core::ptr::NonNull;

use super::{Consumer, Producer};
use crate::host::HostCell;
use crate::ring::{RingFlags, RingHeader};
use crate::{Host, HostWord};

/// A ring of `N` values of any type, a power of two (checked at compile time).
///
/// What is left in it is dropped with it.
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::spsc::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
#[repr(C)]
pub struct Ring<T, const N: usize> {
    header: RingHeader<HostWord>,
    slots: [HostCell<T>; N],
}

// SAFETY: without `split`, which takes `&mut`, nothing can be reached through it.
unsafe impl<T: Send, const N: usize> Sync for Ring<T, N> {}

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
        Self {
            header: RingHeader::inline(RingFlags::SPSC, N as u64, size_of::<T>(), core::mem::offset_of!(Self, slots), start),
            slots: [const { HostCell::empty() }; N],
        }
    }

    /// Its two ends. They may go to two threads; when both are gone it can be split again, with what is left in it.
    pub fn split(&mut self) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
        let Self { header, slots } = &*self;
        let slots = NonNull::from(slots).cast();
        // SAFETY: `&mut self` lends the ring to this one pair; N cells, N a power of two.
        let producer = unsafe { Producer::over(header, header, slots, N as u64) };
        // SAFETY: as above; what lies between the indices was pushed.
        let consumer = unsafe { Consumer::over(header, header, slots, N as u64) };
        match (producer, consumer) {
            (Ok(producer), Ok(consumer)) => (producer.announce(), consumer.announce()),
            // Only the two ends write the indices, and they keep them within N.
            _ => unreachable!("a ring's own indices are within its capacity"),
        }
    }
}

// An end may move to another thread; it is never shared, and there are never two of it.
static_assertions::assert_impl_all!(Producer<'static, u64, Host>: Send);
static_assertions::assert_impl_all!(Consumer<'static, u64, Host>: Send);
static_assertions::assert_not_impl_any!(Producer<'static, u64, Host>: Sync, Clone);
static_assertions::assert_not_impl_any!(Consumer<'static, u64, Host>: Sync, Clone);

impl<T, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Drop for Ring<T, N> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            let (_, mut consumer) = self.split();
            if let Ok(chunk) = consumer.peek(N as u64) {
                chunk.release(N as u64);
            }
        }
    }
}
