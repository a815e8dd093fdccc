//! [`Slots`]: the records of the live blocks, written and read without a lock.
//!
//! 1. A [`slot`] has one writer at a time, and its record is read whole or not at all.
//! 2. A claim first tries the slot that this thread freed last. Otherwise a cursor scans the slots; if three quarters are in use after a whole
//!    round, their number doubles. So it skips at most three used slots per free one, on average.
//! 3. At least 3/8 of the slots are in use after growth. The table never shrinks.

mod slot;
#[cfg(test)]
mod tests;

use core::array;
use core::cell::Cell;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::sync::OnceLock;

use crate::{CacheLineAligned, HostWord};

pub(super) use slot::Record;

/// Slots of the first chunk. Each further chunk has as many as all before it.
const FIRST: usize = 64;
/// Enough chunks for 2^31 slots: a ticket has 32 bits for an index.
const CHUNKS: usize = 26;

type Slot = slot::Slot<HostWord>;

pub(super) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// The number of slots in the present chunks. Only grows.
    len: AtomicUsize,
    /// The start of the next search. A hint that any thread writes: a slot's state decides.
    cursor: CacheLineAligned<AtomicUsize>,
}

thread_local! {
    /// The slot that this thread freed last, of any list: searched first.
    static FREED: Cell<usize> = const { Cell::new(0) };
}

impl Slots {
    /// Returns an empty table: the first chunk is allocated when it is needed.
    pub fn new() -> Self {
        Self { chunks: array::from_fn(|_| OnceLock::new()), len: AtomicUsize::new(0), cursor: CacheLineAligned::new(AtomicUsize::new(0)) }
    }

    /// Claims a slot; `None` if 2^31 are in use.
    pub fn claim(&self) -> Option<Claim<'_>> {
        if let Some(claim) = self.try_claim(FREED.get()) {
            return Some(claim);
        }
        loop {
            // Only the number is read through it: a chunk is read through its lock.
            let len = self.len.load(Relaxed);
            for index in self.cursor.load(Relaxed)..len {
                if let Some(claim) = self.try_claim(index) {
                    self.cursor.store(index + 1, Relaxed);
                    return Some(claim);
                }
            }
            // The end of a round.
            let used = self.all().filter(|slot| !slot.is_free()).count();
            if used * 4 >= len * 3 {
                self.grow(len)?;
                self.cursor.store(len, Relaxed);
            } else {
                self.cursor.store(0, Relaxed);
            }
        }
    }

    /// Returns the record of a ticket and frees its slot. `None` for an unknown ticket.
    pub fn take(&self, ticket: u64) -> Option<Record> {
        let index = (ticket & u64::from(u32::MAX)) as usize;
        let record = self.slot(index)?.take((ticket >> 32) as u32);
        if record.is_some() {
            FREED.set(index);
        }
        record
    }

    /// Returns the records of all blocks that are live during the whole call, and possibly of others.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.all().filter_map(Slot::read)
    }

    fn all(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().map_while(OnceLock::get).flatten()
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        // Chunk `n` ends at `FIRST << n` slots and begins at half of them; the first begins at 0.
        let chunk = (index / FIRST).checked_ilog2().map_or(0, |log| log as usize + 1);
        let begin = if chunk == 0 { 0 } else { FIRST << (chunk - 1) };
        self.chunks.get(chunk)?.get()?.get(index - begin)
    }

    fn try_claim(&self, index: usize) -> Option<Claim<'_>> {
        let slot = self.slot(index)?.claim()?;
        Some(Claim { slot, index })
    }

    /// Doubles the number of slots, unless another thread did.
    #[cold]
    fn grow(&self, len: usize) -> Option<()> {
        let (chunk, more) = if len == 0 { (0, FIRST) } else { ((len / FIRST).ilog2() as usize + 1, len) };
        self.chunks.get(chunk)?.get_or_init(|| (0..more).map(|_| Slot::new()).collect());
        self.len.fetch_max(len + more, Relaxed);
        Some(())
    }
}

/// A slot that only this value writes. Freed if it is dropped without a block.
pub(super) struct Claim<'a> {
    slot: slot::Claim<'a, HostWord>,
    index: usize,
}

impl Claim<'_> {
    /// Lists a block; returns the ticket for [`Slots::take`]: the low bits of the turn above the index.
    pub fn fill(self, record: &Record) -> u64 {
        u64::from(self.slot.fill(record)) << 32 | self.index as u64
    }
}
