//! [`Slots`]: a record of every live block, written and read without a lock.
//!
//! 1. A [`slot`] has one writer at a time, and its record is read whole or not at all.
//! 2. One is found at once where the one that this thread freed last is free. Else a cursor goes round; where three quarters of the slots are in
//!    use when it has been round, they become twice as many. So it passes at most three used slots for each free one, on average.
//! 3. At least 3/8 of the slots are in use when they have become more; they do not become fewer.

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

/// Slots of the first chunk. Each further one has as many as all before it.
const FIRST: usize = 64;
/// As many chunks as make 2^31 slots: a ticket has 32 bits for an index.
const CHUNKS: usize = 26;

type Slot = slot::Slot<HostWord>;

pub(super) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// Slots in the chunks that are there. Only grows.
    len: AtomicUsize,
    /// Where to look. A hint, which any thread writes: a slot's state decides.
    cursor: CacheLineAligned<AtomicUsize>,
}

thread_local! {
    /// Where to look first: the slot that this thread freed last, in whichever list that was.
    static FREED: Cell<usize> = const { Cell::new(0) };
}

impl Slots {
    /// None yet: the first is made when it is needed.
    pub fn new() -> Self {
        Self { chunks: array::from_fn(|_| OnceLock::new()), len: AtomicUsize::new(0), cursor: CacheLineAligned::new(AtomicUsize::new(0)) }
    }

    /// A slot for a block to come; `None` when 2^31 are in use.
    pub fn claim(&self) -> Option<Claim<'_>> {
        if let Some(claim) = self.try_claim(FREED.get()) {
            return Some(claim);
        }
        loop {
            // Nothing is seen through it but the number: a chunk is seen through its lock.
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

    /// The record that a ticket is for, and its slot free again. `None` for a ticket that is nobody's.
    pub fn take(&self, ticket: u64) -> Option<Record> {
        let index = (ticket & u64::from(u32::MAX)) as usize;
        let record = self.slot(index)?.take((ticket >> 32) as u32);
        if record.is_some() {
            FREED.set(index);
        }
        record
    }

    /// The record of every block that is live all the while; of others perhaps.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.all().filter_map(Slot::read)
    }

    fn all(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().map_while(OnceLock::get).flatten()
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        // Chunk `n` begins where there are `FIRST << n` slots with it and half of them without; the first has no half before it.
        let chunk = (index / FIRST).checked_ilog2().map_or(0, |log| log as usize + 1);
        let begin = if chunk == 0 { 0 } else { FIRST << (chunk - 1) };
        self.chunks.get(chunk)?.get()?.get(index - begin)
    }

    fn try_claim(&self, index: usize) -> Option<Claim<'_>> {
        let slot = self.slot(index)?.claim()?;
        Some(Claim { slot, index })
    }

    /// Twice as many slots as `len`, if there are not more already.
    #[cold]
    fn grow(&self, len: usize) -> Option<()> {
        let (chunk, more) = if len == 0 { (0, FIRST) } else { ((len / FIRST).ilog2() as usize + 1, len) };
        self.chunks.get(chunk)?.get_or_init(|| (0..more).map(|_| Slot::new()).collect());
        self.len.fetch_max(len + more, Relaxed);
        Some(())
    }
}

/// A slot that nobody else writes to. Free again when it is dropped without a block.
pub(super) struct Claim<'a> {
    slot: slot::Claim<'a, HostWord>,
    index: usize,
}

impl Claim<'_> {
    /// Lists a block; the ticket for which [`Slots::take`] gives the record back: the turn's low bits above the index.
    pub fn fill(self, record: &Record) -> u64 {
        u64::from(self.slot.fill(record)) << 32 | self.index as u64
    }
}
