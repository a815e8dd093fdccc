//! [`State`]: what the lock of a pool protects.

use std::collections::HashMap;
use std::vec::Vec;

use crate::backend::{Block, Uses};
use crate::pool::cache::Entry;
use crate::pool::heap::{Given, Heap};
use crate::pool::tag::Tag;

/// The time of a slab that was just emptied: later than every clock value.
pub(super) const UNDATED: u64 = u64::MAX;

pub(super) struct Slab {
    pub block: Block,
    /// The time of the last free in this slab.
    pub empty_since: u64,
}

#[derive(Default)]
pub(super) struct State {
    pub heap: Heap,
    /// By number; `None` for an unused number.
    pub slabs: Vec<Option<Slab>>,
    /// Freed entries whose last uses are not complete.
    pub pending: Vec<(Uses, Entry)>,
    /// By [`address`](crate::backend::Block::address): the upstream tags of direct blocks, which carry the pool's tags while they are live.
    pub direct: HashMap<u64, u64>,
    /// Blocks that were freed upstream but still count as reserved: their uses are not complete, or their free is deferred.
    pub leaving: Vec<(Uses, Block)>,
    /// The number of threads that move memory between the upstream memory, the heap and caches, out of sight of other threads.
    pub moving: u32,
    /// The number of reservations that the limit refused.
    pub refusals: u64,
    /// Bytes of slabs and of direct blocks, including those that are being allocated. Never above the limit.
    pub reserved: u64,
    pub peak: u64,
}

impl State {
    /// Frees a part into the heap, possibly [deferred](Heap::free_deferred). Returns the slab that this emptied, which the caller must
    /// [`date`](Central::date).
    pub fn give(&mut self, entry: &Entry) -> Option<u32> {
        let given = self.heap.free_deferred(Tag(entry.idle.tag).part()?)?;
        self.emptied(given)
    }

    /// Performs all deferred frees. Returns the slabs that this emptied, which the caller must date.
    pub fn settle(&mut self) -> Vec<u32> {
        let mut emptied = Vec::new();
        while let Some(given) = self.heap.free_next_deferred() {
            emptied.extend(self.emptied(given));
        }
        emptied
    }

    fn emptied(&mut self, given: Given) -> Option<u32> {
        if !given.is_empty {
            return None;
        }
        self.slabs.get_mut(given.slab as usize)?.as_mut()?.empty_since = UNDATED;
        Some(given.slab)
    }

    /// Returns the empty slabs with their numbers.
    pub fn empty_slabs(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.heap.empty_slabs().filter_map(|number| Some((number, self.slabs.get(number as usize)?.as_ref()?)))
    }
}
