//! [`Slot`]: one record, one writer at a time, any number of readers.
//!
//! 1. A slot is free, claimed or live. Only the claimer writes it until it is free again.
//! 2. A record is read whole or not at all: before and after, the slot is live and of the same turn. Words are stored with release and
//!    loaded with acquire, so a reader of a later turn's word sees that turn's claim.

use core::array;
use core::mem::forget;
use core::panic::Location;
use core::ptr;

use ringmem_layouts::RmwWord;

use crate::backend::{MemoryLocation, StreamId};

#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Record {
    pub number: u64,
    /// By the tracker's clock.
    pub since: u64,
    pub bytes: u64,
    pub align: u64,
    pub address: u64,
    /// The upstream block's.
    pub tag: u64,
    pub stream: Option<StreamId>,
    pub location: MemoryLocation,
    /// 0 for none.
    pub name: u32,
    pub has_note: bool,
    pub caller: &'static Location<'static>,
}

/// 72 bytes on the host.
pub(super) struct Slot<W> {
    /// The turn above the phase. Each claim begins a turn.
    state: W,
    // INVARIANT: if live since the last claim, a record's `words`.
    record: [W; 8],
}

const PHASE: u64 = 3;
const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const LIVE: u64 = 2;
const TURN: u32 = 2;

impl<W: RmwWord> Slot<W> {
    pub fn new() -> Self {
        Self { state: W::new(0), record: array::from_fn(|_| W::new(0)) }
    }

    pub fn is_free(&self) -> bool {
        self.state.load() & PHASE == FREE
    }

    pub fn claim(&self) -> Option<Claim<'_, W>> {
        let state = self.state.load();
        if state & PHASE != FREE {
            return None;
        }
        let claimed = state.wrapping_add(1 << TURN) | CLAIMED;
        // SYNC POINT: slot freed. Pairs with `take`, and with the drop of a claim.
        self.state.compare_exchange(state, claimed).ok()?;
        Some(Claim { slot: self, state: claimed })
    }

    /// By the block's owner only, with the turn's low half.
    #[inline(always)]
    pub fn take(&self, turn: u32) -> Option<Record> {
        // Live since before the block was handed out.
        let state = self.state.load();
        if state & PHASE != LIVE || turn_of(state) != turn {
            return None;
        }
        let record = record(array::from_fn(|index| self.record[index].load()));
        // SYNC POINT: slot freed. Pairs with `claim`: the record has been read before it is overwritten.
        self.state.store_release(state & !PHASE | FREE);
        record
    }

    pub fn read(&self) -> Option<Record> {
        // SYNC POINT: record written. Pairs with `Claim::fill`.
        let before = self.state.load_acquire();
        if before & PHASE != LIVE {
            return None;
        }
        // SYNC POINT: record begun. Pairs with the stores in `Claim::fill`.
        let words = array::from_fn(|index| self.record[index].load_acquire());
        // Otherwise torn.
        if self.state.load() == before { record(words) } else { None }
    }
}

/// Exclusive access, freed on drop unless filled.
pub(super) struct Claim<'a, W: RmwWord> {
    slot: &'a Slot<W>,
    state: u64,
}

impl<W: RmwWord> Claim<'_, W> {
    /// Returns the low half of its turn.
    #[inline(always)]
    pub fn fill(self, record: &Record) -> u32 {
        let Self { slot, state } = self;
        forget(self);
        for (word, value) in slot.record.iter().zip(words(record)) {
            // SYNC POINT: record begun. Pairs with the loads in `Slot::read`: a reader of a word of this record then sees the claim.
            word.store_release(value);
        }
        let live = state & !PHASE | LIVE;
        // SYNC POINT: record written. Pairs with the first load in `Slot::read`.
        slot.state.store_release(live);
        turn_of(live)
    }
}

impl<W: RmwWord> Drop for Claim<'_, W> {
    fn drop(&mut self) {
        // SYNC POINT: slot freed. Pairs with `Slot::claim`.
        self.slot.state.store_release(self.state & !PHASE | FREE);
    }
}

const fn turn_of(state: u64) -> u32 {
    (state >> TURN) as u32
}

// Name in the high 32 bits; below: a bit for a note, the location, and the alignment's logarithm in the low 8.
const NAME: u32 = 32;
const NOTE: u64 = 1 << 16;
const LOCATION: u32 = 8;

#[inline(always)]
fn words(record: &Record) -> [u64; 8] {
    let note = if record.has_note { NOTE } else { 0 };
    let facts = u64::from(record.name) << NAME | note | record.location.bits() << LOCATION | u64::from(record.align.trailing_zeros());
    let stream = record.stream.map_or(0, StreamId::get);
    let caller = ptr::from_ref(record.caller).expose_provenance() as u64;
    [record.number, record.since, record.bytes, record.address, record.tag, stream, facts, caller]
}

/// `None` before the first record.
fn record([number, since, bytes, address, tag, stream, facts, caller]: [u64; 8]) -> Option<Record> {
    let caller: *const Location<'static> = ptr::with_exposed_provenance(caller as usize);
    Some(Record {
        number,
        since,
        bytes,
        align: 1 << (facts & 63),
        address,
        tag,
        stream: StreamId::numbered(stream),
        location: MemoryLocation::from_bits(facts >> LOCATION),
        name: (facts >> NAME) as u32,
        has_note: facts & NOTE != 0,
        // SAFETY: null or a static reference: nothing else is written here.
        caller: unsafe { caller.as_ref() }?,
    })
}
