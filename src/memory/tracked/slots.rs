//! [`Slots`]: the live blocks' records, written and read without a lock.
//!
//! 1. A claim first tries the slot that this thread freed last, then scans from a cursor. If three quarters are in use after a round, the
//!    slots double. On average, a scan skips three used slots per free one.
//! 2. After growth, at least 3/8 of the slots are in use.

mod slot;
#[cfg(test)]
mod tests;

use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::growing_table::GrowingTable;
use crate::{CacheLineAligned, HostWord};

pub(super) use slot::Record;

/// Slots of the first growth; each further one doubles them.
const FIRST: u32 = 64;

type Slot = slot::Slot<HostWord>;

pub(super) struct Slots {
    slots: GrowingTable<Slot>,
    len: AtomicU32,
    /// A hint: the next search's start.
    cursor: CacheLineAligned<AtomicU32>,
}

thread_local! {
    /// A hint: the slot that this thread freed last, in any list.
    static FREED: Cell<u32> = const { Cell::new(0) };
}

impl Slots {
    pub fn new() -> Self {
        Self { slots: GrowingTable::new(), len: AtomicU32::new(0), cursor: CacheLineAligned::new(AtomicU32::new(0)) }
    }

    /// `None` if 2^31 are in use.
    pub fn claim(&self) -> Option<Claim<'_>> {
        if let Some(claim) = self.try_claim(FREED.get()) {
            return Some(claim);
        }
        loop {
            // Publishes nothing: the table publishes its slots.
            let len = self.len.load(Relaxed);
            for index in self.cursor.load(Relaxed)..len {
                if let Some(claim) = self.try_claim(index) {
                    self.cursor.store(index + 1, Relaxed);
                    return Some(claim);
                }
            }
            let used = self.slots.iter().filter(|slot| !slot.is_free()).count() as u64;
            if used * 4 >= u64::from(len) * 3 {
                self.grow(len)?;
                self.cursor.store(len, Relaxed);
            } else {
                self.cursor.store(0, Relaxed);
            }
        }
    }

    #[inline(always)]
    pub fn take(&self, ticket: u64) -> Option<Record> {
        let index = ticket as u32;
        let record = self.slots.get(index)?.take((ticket >> 32) as u32);
        if record.is_some() {
            FREED.set(index);
        }
        record
    }

    /// At least the blocks that are live throughout the call.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.slots.iter().filter_map(Slot::read)
    }

    fn try_claim(&self, index: u32) -> Option<Claim<'_>> {
        let slot = self.slots.get(index)?.claim()?;
        Some(Claim { slot, index })
    }

    /// Doubles the slots, unless another thread has.
    #[cold]
    fn grow(&self, len: u32) -> Option<()> {
        let more = len.checked_mul(2)?.max(FIRST);
        self.slots.grow_to(more, Slot::new)?;
        self.len.fetch_max(more, Relaxed);
        Some(())
    }
}

/// Exclusive access to a slot, freed on drop unless filled.
pub(super) struct Claim<'a> {
    slot: slot::Claim<'a, HostWord>,
    index: u32,
}

impl Claim<'_> {
    /// Returns [`Slots::take`]'s ticket: the turn's low half above the index.
    #[inline(always)]
    pub fn fill(self, record: &Record) -> u64 {
        u64::from(self.slot.fill(record)) << 32 | u64::from(self.index)
    }
}
