//! [`Compaction`]: moving blocks together, so that what is free is in one piece and slabs become empty.
//!
//! 1. A block moves towards the front: to a free part of a slab that comes before its own, or of its own with a lower offset. The fullest
//!    slabs come first, before them those with blocks that nobody may move: so the emptiest become empty.
//! 2. Other threads allocate and free meanwhile. A part that is no longer free is passed over; nobody waits for a copy.
//! 3. What is moved is neither asked for nor given back, as far as the pool counts.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Central, Entry, Idle, Moving};
use crate::Result;
use crate::backend::Block;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::pool::heap::{Base, Carved, PartId};
use crate::pool::tag::Tag;

/// Where a part is, from the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Its slab's place among the slabs.
    rank: u32,
    offset: u64,
}

/// A part that was free.
struct Hole {
    part: PartId,
    slab: u32,
    bytes: u64,
    base: Base,
}

impl Hole {
    /// Returns whether it has `bytes` bytes at an alignment.
    fn fits(&self, at: Place, bytes: u64, align: u64) -> bool {
        self.base.padding_bytes(at.offset, align).and_then(|padding| self.bytes.checked_sub(padding)).is_some_and(|usable| usable >= bytes)
    }
}

/// A pool's slabs as they were when this was made.
pub(crate) struct Compaction<'a, M: Memory> {
    central: &'a Central<M>,
    /// Of the blocks that may be moved.
    places: HashMap<PartId, Place>,
    holes: BTreeMap<Place, Hole>,
    slabs: usize,
    _moving: Moving<'a, M>,
}

impl<M: Memory> Pool<M> {
    /// Whether a buffer of `other` is of this pool.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.shared.id == other.shared.id
    }

    /// Whether a block of this pool is in a slab, and so may be moved.
    pub(crate) fn is_in_a_slab(block: &Block) -> bool {
        block.layout.size() > 0 && Tag(block.tag).part().is_some()
    }

    /// Begins to move blocks together, of which those may be moved. What threads have cached goes back to its slabs before.
    pub(crate) fn compaction(&self, movable: impl IntoIterator<Item = u64>) -> Result<Compaction<'_, M>> {
        let central = self.here()?;
        let moving = central.moving();
        central.empty_caches();
        central.collect();
        let movable: HashSet<PartId> = movable.into_iter().filter_map(|tag| Tag(tag).part()).collect();
        let state = central.settled();
        let mut live: HashMap<u32, (bool, u64)> = HashMap::new();
        for (part, slab, _, bytes, is_free) in state.heap.parts() {
            let (has_fixed, taken) = live.entry(slab).or_default();
            if !is_free {
                *has_fixed |= !movable.contains(&part);
                *taken += bytes;
            }
        }
        let mut order: Vec<u32> = live.keys().copied().collect();
        order.sort_unstable_by_key(|slab| (Reverse(live.get(slab).copied()), *slab));
        let ranks: HashMap<u32, u32> = order.into_iter().zip(0..).collect();
        let (mut places, mut holes) = (HashMap::new(), BTreeMap::new());
        for (part, slab, offset, bytes, is_free) in state.heap.parts() {
            let Some(&rank) = ranks.get(&slab) else { continue };
            let place = Place { rank, offset };
            if is_free {
                let Some(base) = state.heap.base(slab) else { continue };
                holes.insert(place, Hole { part, slab, bytes, base });
            } else if movable.contains(&part) {
                places.insert(part, place);
            }
        }
        let slabs = state.slabs.iter().flatten().count();
        drop(state);
        Ok(Compaction { central, places, holes, slabs, _moving: moving })
    }
}

impl<M: Memory> Compaction<'_, M> {
    /// Where a block is; `None` for one that was not there to be moved.
    pub fn place(&self, tag: u64) -> Option<Place> {
        self.places.get(&Tag(tag).part()?).copied()
    }

    /// Returns a block of the same size and alignment nearer to the front, if there is room. The caller owns it; no bytes are copied yet. Ask for
    /// the last blocks first.
    pub fn nearer(&mut self, block: &Block) -> Option<Block> {
        let (place, bytes, align) = (self.place(block.tag)?, Tag(block.tag).bytes(), block.layout.align() as u64);
        loop {
            let (&at, _) = self.holes.range(..place).find(|(at, hole)| hole.fits(**at, bytes, align))?;
            let hole = self.holes.remove(&at)?;
            let mut state = self.central.lock();
            // Nobody's any more, or not as it was: passed over.
            let Some(carved) = state.heap.take_at(hole.part, hole.slab, at.offset, bytes, align) else { continue };
            let Carved { taken, before, after } = carved;
            let Some(Some(slab)) = state.slabs.get(hole.slab as usize) else {
                state.heap.give(taken.part);
                continue;
            };
            let end = taken.offset + taken.size;
            if let Some(part) = before {
                self.holes.insert(at, Hole { part, bytes: taken.offset - at.offset, ..hole });
            }
            if let Some(part) = after {
                self.holes.insert(Place { offset: end, ..at }, Hole { part, bytes: (at.offset + hole.bytes).saturating_sub(end), ..hole });
            }
            let entry = self.central.entry(&taken, &slab.block);
            return Some(self.central.block(&entry, block.layout));
        }
    }

    /// Takes a block back that nobody uses.
    pub fn give(&self, block: &Block) {
        let entry = Entry { idle: Idle::new(block.tag, block.device_address, block.host), used: None };
        self.central.put_back(std::vec![entry]);
    }

    /// Gives every empty slab back to the memory: how many, and their bytes.
    pub fn finish(self) -> (u64, u64) {
        let Self { central, slabs, _moving, .. } = self;
        let bytes = central.trim(0, Duration::ZERO);
        let left = central.lock().slabs.iter().flatten().count();
        (slabs.saturating_sub(left) as u64, bytes)
    }
}
