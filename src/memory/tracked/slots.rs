//! [`Slots`]: the live blocks' records, written and read without a lock.
//!
//! 1. A claim first tries the slot that this thread freed last, then scans from a cursor. If three quarters are in use after a round, the
//!    slots double. On average, a scan skips three used slots per free one.
//! 2. After growth, at least 3/8 of the slots are in use.

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

/// Each further chunk has as many slots as all before it.
const FIRST: usize = 64;
/// 2^31 slots: a ticket has 32 bits for an index.
const CHUNKS: usize = 26;

type Slot = slot::Slot<HostWord>;

pub(super) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    len: AtomicUsize,
    /// A hint: the next search's start.
    cursor: CacheLineAligned<AtomicUsize>,
}

thread_local! {
    /// A hint: the slot that this thread freed last, in any list.
    static FREED: Cell<usize> = const { Cell::new(0) };
}

impl Slots {
    pub fn new() -> Self {
        Self { chunks: array::from_fn(|_| OnceLock::new()), len: AtomicUsize::new(0), cursor: CacheLineAligned::new(AtomicUsize::new(0)) }
    }

    /// `None` if 2^31 are in use.
    pub fn claim(&self) -> Option<Claim<'_>> {
        if let Some(claim) = self.try_claim(FREED.get()) {
            return Some(claim);
        }
        loop {
            // Publishes nothing: a `OnceLock` publishes each chunk.
            let len = self.len.load(Relaxed);
            for index in self.cursor.load(Relaxed)..len {
                if let Some(claim) = self.try_claim(index) {
                    self.cursor.store(index + 1, Relaxed);
                    return Some(claim);
                }
            }
            let used = self.all().filter(|slot| !slot.is_free()).count();
            if used * 4 >= len * 3 {
                self.grow(len)?;
                self.cursor.store(len, Relaxed);
            } else {
                self.cursor.store(0, Relaxed);
            }
        }
    }

    pub fn take(&self, ticket: u64) -> Option<Record> {
        let index = (ticket & u64::from(u32::MAX)) as usize;
        let record = self.slot(index)?.take((ticket >> 32) as u32);
        if record.is_some() {
            FREED.set(index);
        }
        record
    }

    /// At least the blocks that are live throughout the call.
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

    /// Unless another thread did.
    #[cold]
    fn grow(&self, len: usize) -> Option<()> {
        let (chunk, more) = if len == 0 { (0, FIRST) } else { ((len / FIRST).ilog2() as usize + 1, len) };
        self.chunks.get(chunk)?.get_or_init(|| (0..more).map(|_| Slot::new()).collect());
        self.len.fetch_max(len + more, Relaxed);
        Some(())
    }
}

/// Exclusive access to a slot, freed on drop unless filled.
pub(super) struct Claim<'a> {
    slot: slot::Claim<'a, HostWord>,
    index: usize,
}

impl Claim<'_> {
    /// Returns [`Slots::take`]'s ticket: the turn's low half above the index.
    pub fn fill(self, record: &Record) -> u64 {
        u64::from(self.slot.fill(record)) << 32 | self.index as u64
    }
}
