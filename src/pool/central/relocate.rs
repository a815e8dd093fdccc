//! [`Compaction`]: moves blocks together, so that free memory is contiguous and slabs become empty.
//!
//! 1. A block moves to a free part of its zone in an earlier slab, or at a lower offset. Slabs with immovable blocks come first, then the others, fullest
//!    first.
//! 2. Other threads allocate and free concurrently. A part taken meanwhile is skipped.
//! 3. Moves are neither requests nor returns.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Central, Entry, Idle, InTransit};
use crate::Result;
use crate::backend::Block;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::pool::cache::UNDATED;
use crate::pool::heap::{Base, Carved, PartId, Zone};
use crate::pool::tag::Tag;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    rank: u32,
    offset: u64,
}

struct Hole {
    part: PartId,
    slab: u32,
    zone: Zone,
    bytes: u64,
    base: Base,
}

impl Hole {
    fn fits(&self, at: Position, bytes: u64, align: u64) -> bool {
        self.base.padding_bytes(at.offset, align).and_then(|padding| self.bytes.checked_sub(padding)).is_some_and(|usable| usable >= bytes)
    }
}

pub(crate) struct Compaction<'a, M: Memory> {
    central: &'a Central<M>,
    positions: HashMap<PartId, (Position, Zone)>,
    holes: BTreeMap<Position, Hole>,
    slabs: usize,
    _transit: InTransit<'a, M>,
}

impl<M: Memory> Pool<M> {
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.shared.id == other.shared.id
    }

    pub(crate) fn is_in_a_slab(block: &Block) -> bool {
        block.layout.size() > 0 && Tag(block.tag).part().is_some()
    }

    /// `movable` are the blocks' tags. Flushes all thread caches first.
    pub(crate) fn compaction(&self, movable: impl IntoIterator<Item = u64>) -> Result<Compaction<'_, M>> {
        let central = self.here()?;
        let transit = central.start_transit();
        central.flush_caches();
        central.collect();
        let movable: HashSet<PartId> = movable.into_iter().filter_map(|tag| Tag(tag).part()).collect();
        let state = central.lock_coalesced();
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
        let (mut positions, mut holes) = (HashMap::new(), BTreeMap::new());
        for (part, slab, offset, bytes, is_free) in state.heap.parts() {
            let Some(&rank) = ranks.get(&slab) else { continue };
            let position = Position { rank, offset };
            if is_free {
                let Some(base) = state.heap.base(slab) else { continue };
                holes.insert(position, Hole { part, slab, zone: state.heap.zone(part), bytes, base });
            } else if movable.contains(&part) {
                positions.insert(part, (position, state.heap.zone(part)));
            }
        }
        let slabs = state.upstream_blocks();
        drop(state);
        Ok(Compaction { central, positions, holes, slabs, _transit: transit })
    }
}

impl<M: Memory> Compaction<'_, M> {
    pub fn position(&self, tag: u64) -> Option<Position> {
        Some(self.positions.get(&Tag(tag).part()?)?.0)
    }

    /// Returns a block of the same layout nearer to the front, owned by the caller. Call it for the last blocks first.
    pub fn nearer(&mut self, block: &Block) -> Option<Block> {
        let &(position, zone) = self.positions.get(&Tag(block.tag).part()?)?;
        let (bytes, align) = (Tag(block.tag).bytes(), block.layout.align() as u64);
        loop {
            let (&at, _) = self.holes.range(..position).find(|(at, hole)| hole.zone == zone && hole.fits(**at, bytes, align))?;
            let hole = self.holes.remove(&at)?;
            let mut state = self.central.lock();
            let Some(carved) = state.heap.take_at(hole.part, hole.slab, at.offset, bytes, align) else { continue };
            let Carved { taken, before, after } = carved;
            let Some(Some(slab)) = state.slabs.get(hole.slab as usize) else {
                state.heap.coalesce(taken.part, 0);
                continue;
            };
            let end = taken.offset + taken.size;
            if let Some(part) = before {
                self.holes.insert(at, Hole { part, bytes: taken.offset - at.offset, ..hole });
            }
            if let Some(part) = after {
                self.holes
                    .insert(Position { offset: end, ..at }, Hole { part, bytes: (at.offset + hole.bytes).saturating_sub(end), ..hole });
            }
            let entry = self.central.entry(&taken, &slab.block);
            return Some(self.central.block(&entry, block.layout));
        }
    }

    pub fn free(&self, block: &Block) {
        let entry = Entry { idle: Idle::new(block.tag, block.device_address, block.host), used: None };
        self.central.free_counted(std::vec![(entry, UNDATED)]);
    }

    /// Frees every empty slab; returns their number and bytes.
    pub fn finish(self) -> (u64, u64) {
        let Self { central, slabs, _transit, .. } = self;
        let bytes = central.trim(0, Duration::ZERO);
        let left = central.lock().upstream_blocks();
        (slabs.saturating_sub(left) as u64, bytes)
    }
}
