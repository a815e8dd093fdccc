use std::collections::{BTreeSet, HashMap};
use std::time::Instant;
use std::vec::Vec;

use crate::backend::{Block, Uses};
use crate::pool::cache::{Entry, UNDATED};
use crate::pool::heap::{Given, Heap};
use crate::pool::tag::Tag;

pub(super) struct Slab {
    pub block: Block,
    /// The latest time of a use of a freed part. [`UNDATED`] if one is unknown; dated when the slab is empty.
    pub last_use: u64,
}

pub(super) struct Growth {
    pub number: u64,
    pub bytes: u64,
    pub begun: Instant,
}

#[derive(Default)]
pub(super) struct State {
    pub heap: Heap,
    pub slabs: Vec<Option<Slab>>,
    // INVARIANT: the numbers of the slabs that are `None`.
    pub vacant: BTreeSet<u32>,
    pub pending: Vec<(Uses, Entry)>,
    /// By address: direct blocks' upstream tags; while live, they carry the pool's.
    pub direct: HashMap<u64, u64>,
    /// Freed upstream but still reserved: in use or deferred.
    pub leaving: Vec<(Uses, Block)>,
    /// Threads that move memory out of sight of others.
    pub moving: u32,
    /// Upstream allocations whose memory is neither available nor given up, oldest first.
    pub growing: Vec<Growth>,
    pub growths: u64,
    pub refusals: u64,
    /// Bytes of slabs and direct blocks, also during their allocation; at most the limit.
    pub reserved: u64,
    pub peak: u64,
}

impl State {
    /// Frees an entry, last used at `since`. May [defer](Heap::free_deferred). Returns the emptied slab, for the caller to date.
    pub fn give(&mut self, entry: &Entry, since: u64) -> Option<u32> {
        let given = self.heap.free_deferred(Tag(entry.idle.tag).part()?, since)?;
        self.freed(given)
    }

    /// Performs all deferred frees; returns the emptied slabs.
    pub fn settle(&mut self) -> Vec<u32> {
        let mut emptied = Vec::new();
        while let Some(given) = self.heap.free_next_deferred() {
            emptied.extend(self.freed(given));
        }
        emptied
    }

    fn freed(&mut self, given: Given) -> Option<u32> {
        let slab = self.slabs.get_mut(given.slab as usize)?.as_mut()?;
        slab.last_use = slab.last_use.max(given.since);
        (given.is_empty && slab.last_use == UNDATED).then_some(given.slab)
    }

    pub fn empty_slabs(&self) -> impl Iterator<Item = (u32, &Slab)> {
        self.heap.empty_slabs().filter_map(|number| Some((number, self.slabs.get(number as usize)?.as_ref()?)))
    }
}
