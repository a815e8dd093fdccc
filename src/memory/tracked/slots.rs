//! [`Slots`]: a record of every live block, written and read without a lock.
//!
//! 1. A slot is free, claimed or live. Who claims it is the only one that writes to it until it is free again.
//! 2. A record is read whole or not at all: the slot is live, and the same turn of it, before and after.
//! 3. A slot is found at once where the one that this thread freed last is free. Else a cursor goes round; where three quarters of the slots are in
//!    use when it has been round, they become twice as many. So it passes at most three used slots for each free one, on average.
//! 4. At least 3/8 of the slots are in use when they have become more; they do not become fewer.

#[cfg(test)]
mod tests;

use core::array;
use core::cell::Cell;
use core::mem::forget;
use core::panic::Location;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence};
use std::boxed::Box;
use std::sync::OnceLock;

use crate::CacheLineAligned;
use crate::backend::{MemoryLocation, StreamId};

/// Slots of the first chunk. Each further one has as many as all before it.
const FIRST: usize = 64;
/// As many chunks as make 2^31 slots: a ticket has 32 bits for an index.
const CHUNKS: usize = 26;

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

/// What is kept of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub number: u64,
    /// When it was asked for, by the tracker's clock.
    pub since: u64,
    pub bytes: u64,
    pub align: u64,
    pub address: u64,
    /// The block's, as the memory below gave it.
    pub tag: u64,
    pub stream: Option<StreamId>,
    pub location: MemoryLocation,
    /// 0 for none.
    pub name: u32,
    pub has_backtrace: bool,
    pub caller: &'static Location<'static>,
}

/// 72 bytes.
struct Slot {
    /// The turn, which goes up with each claim, above [`TURN`]; the phase below.
    state: AtomicU64,
    number: AtomicU64,
    since: AtomicU64,
    bytes: AtomicU64,
    address: AtomicU64,
    tag: AtomicU64,
    stream: AtomicU64,
    /// The name in the high 32 bits; then a bit for a backtrace, the location, and the alignment's logarithm in the low 8.
    facts: AtomicU64,
    /// INVARIANT: null or a `&'static Location`.
    caller: AtomicPtr<Location<'static>>,
}

const PHASE: u64 = 3;
const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const LIVE: u64 = 2;
const TURN: u32 = 2;

const NAME: u32 = 32;
const BACKTRACE: u64 = 1 << 16;
const LOCATION: u32 = 8;
const LOCATIONS: [MemoryLocation; 4] = [MemoryLocation::Host, MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified];

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
            let used = self.all().filter(|slot| slot.state.load(Relaxed) & PHASE != FREE).count();
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
        let slot = self.slot(index)?;
        // Live since before its block was given, which came here from there: whoever gives a block back has it.
        let state = slot.state.load(Relaxed);
        if state & PHASE != LIVE || ticket_of(state, index) != ticket {
            return None;
        }
        let record = slot.record();
        // SYNC POINT: slot freed. Pairs with `try_claim`: the record has been read before it is written over.
        slot.state.store(state & !PHASE | FREE, Release);
        FREED.set(index);
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
        let slot = self.slot(index)?;
        let state = slot.state.load(Relaxed);
        if state & PHASE != FREE {
            return None;
        }
        let claimed = state.wrapping_add(1 << TURN) | CLAIMED;
        // SYNC POINT: slot freed. Pairs with `take`, and with the drop of a claim.
        slot.state.compare_exchange(state, claimed, Acquire, Relaxed).ok()?;
        Some(Claim { slot, index, state: claimed })
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
    slot: &'a Slot,
    index: usize,
    /// The slot's.
    state: u64,
}

impl Claim<'_> {
    /// Lists a block; the ticket for which [`Slots::take`] gives the record back.
    pub fn fill(self, record: &Record) -> u64 {
        let Self { slot, index, state } = self;
        forget(self);
        // SYNC POINT: record begun. Pairs with the fence in `Slot::read`: who reads a word of this record sees the claim after it.
        fence(Release);
        slot.write(record);
        let live = state & !PHASE | LIVE;
        // SYNC POINT: record written. Pairs with the first load in `Slot::read`.
        slot.state.store(live, Release);
        ticket_of(live, index)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // SYNC POINT: slot freed. Pairs with `Slots::try_claim`.
        self.slot.state.store(self.state & !PHASE | FREE, Release);
    }
}

/// The turn's low bits above the index.
const fn ticket_of(state: u64, index: usize) -> u64 {
    (state >> TURN) << 32 | index as u64
}

impl Slot {
    const fn new() -> Self {
        const fn zero() -> AtomicU64 {
            AtomicU64::new(0)
        }
        Self {
            state: zero(),
            number: zero(),
            since: zero(),
            bytes: zero(),
            address: zero(),
            tag: zero(),
            stream: zero(),
            facts: zero(),
            caller: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn write(&self, record: &Record) {
        let location = LOCATIONS.iter().position(|&location| location == record.location).unwrap_or(0) as u64;
        let backtrace = if record.has_backtrace { BACKTRACE } else { 0 };
        let facts = u64::from(record.name) << NAME | backtrace | location << LOCATION | u64::from(record.align.trailing_zeros());
        self.number.store(record.number, Relaxed);
        self.since.store(record.since, Relaxed);
        self.bytes.store(record.bytes, Relaxed);
        self.address.store(record.address, Relaxed);
        self.tag.store(record.tag, Relaxed);
        self.stream.store(record.stream.map_or(0, StreamId::get), Relaxed);
        self.facts.store(facts, Relaxed);
        self.caller.store(ptr::from_ref(record.caller).cast_mut(), Relaxed);
    }

    /// The words as they are, torn if somebody is writing them; `None` before the first record.
    fn record(&self) -> Option<Record> {
        let facts = self.facts.load(Relaxed);
        let caller = self.caller.load(Relaxed);
        Some(Record {
            number: self.number.load(Relaxed),
            since: self.since.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            align: 1 << (facts & 63),
            address: self.address.load(Relaxed),
            tag: self.tag.load(Relaxed),
            stream: StreamId::numbered(self.stream.load(Relaxed)),
            location: LOCATIONS[(facts >> LOCATION & 3) as usize],
            name: (facts >> NAME) as u32,
            has_backtrace: facts & BACKTRACE != 0,
            // SAFETY: the invariant: null, or a reference that lives for ever and is only read through.
            caller: unsafe { caller.as_ref() }?,
        })
    }

    /// The record of a live block.
    fn read(&self) -> Option<Record> {
        // SYNC POINT: record written. Pairs with `Claim::fill`.
        let before = self.state.load(Acquire);
        if before & PHASE != LIVE {
            return None;
        }
        let record = self.record();
        // SYNC POINT: record begun. Pairs with the fence in `Claim::fill`.
        fence(Acquire);
        record.filter(|_| self.state.load(Relaxed) == before)
    }
}
