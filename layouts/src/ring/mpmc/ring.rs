//! [`Ring`]: header and slots in one value, for threads or a `static`.

use core::ptr::NonNull;

use super::{Consumer, Producer};
use crate::host::HostCell;
use crate::ring::slots::Slot;
use crate::ring::turns::{Turns, first_use, free};
use crate::ring::{RingFlags, RingHeader};
use crate::{Host, HostWord, SlotCell, Word};

/// A ring of `N` values of any type, a power of two (checked at compile time).
///
/// What is left in it is dropped with it.
///
/// ```compile_fail
/// let ring = ringmem_layouts::ring::mpmc::Ring::<u8, 6>::new(); // 6 is no power of two
/// ```
#[repr(C)]
pub struct Ring<T, const N: usize> {
    header: RingHeader<HostWord>,
    pub(in crate::ring) slots: [Slot<HostWord, HostCell<T>>; N],
}

// SAFETY: threads reach a `T` through handles only, of which each message has one at a time.
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
        Self::of_kind(RingFlags::MPMC, start)
    }

    pub(in crate::ring) const fn of_kind(kind: RingFlags, start: u64) -> Self {
        const { assert!(N.is_power_of_two(), "a ring's capacity must be a power of two") };
        let mut slots = [const { Slot::new(HostWord::new(0), HostCell::empty()) }; N];
        let mut place = 0;
        while place < N {
            let first = first_use(start, place as u64, N as u64);
            slots[place].word = HostWord::new(free(first, N as u64));
            place += 1;
        }
        let slot_size = size_of::<Slot<HostWord, HostCell<T>>>();
        Self { header: RingHeader::inline(kind, N as u64, slot_size, core::mem::offset_of!(Self, slots), start), slots }
    }

    /// A handle for each end; both can be cloned, and asked for again.
    pub fn split(&self) -> (Producer<'_, T, Host>, Consumer<'_, T, Host>) {
        (Producer::at(self.turns()), Consumer::at(self.turns()))
    }

    pub(in crate::ring) fn turns(&self) -> Turns<'_, T, Host> {
        // SAFETY: N slots that live as long as the borrow, reached by this protocol only; N is a power of two.
        unsafe { Turns::new(&self.header, NonNull::from(&self.slots).cast(), N as u64) }
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
            for slot in &self.slots {
                let word = Word::load(&slot.word);
                if word & 1 == 1 {
                    // The word first, so that nothing is dropped twice.
                    Word::store(&slot.word, word - 1);
                    // SAFETY: full says that there is a value; no handle is left to reach it.
                    slot.cell.with_mut(|value| unsafe { value.drop_in_place() });
                }
            }
        }
    }
}
