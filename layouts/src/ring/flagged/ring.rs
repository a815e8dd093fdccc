//! [`Ring`]: header and slots in one value, for two threads or a `static`.

use core::ptr::NonNull;

use super::{Consumer, Producer};
use crate::host::HostCell;
use crate::ring::slots::Slot;
use crate::ring::{RingFlags, RingHeader};
use crate::{Host, HostWord};

/// A ring of `N` values of any type, a power of two (checked at compile time).
///
/// What is left in it is dropped with it.
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::flagged::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
#[repr(C)]
pub struct Ring<T, const N: usize> {
    header: RingHeader<HostWord>,
    slots: [Slot<HostWord, HostCell<T>>; N],
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
        let slot_size = size_of::<Slot<HostWord, HostCell<T>>>();
        Self {
            header: RingHeader::inline(RingFlags::FLAGGED, N as u64, slot_size, core::mem::offset_of!(Self, slots), start),
            slots: [const { Slot::new(HostWord::new(0), HostCell::empty()) }; N],
        }
    }

    /// Its two ends. They may go to two threads; when both are gone it can be split again, with what is left in it.
    pub fn split(&mut self) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
        let Self { header, slots } = &*self;
        let slots = NonNull::from(slots).cast();
        // SAFETY: `&mut self` lends the ring to this one pair; N slots, N a power of two.
        let producer = unsafe { Producer::over(header, header, slots, N as u64) };
        // SAFETY: as above; what has its flag up was pushed.
        let consumer = unsafe { Consumer::over(header, header, slots, N as u64) };
        (producer.announce(), consumer.announce())
    }
}

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
