use core::time::Duration;
use std::collections::HashSet;
use std::vec::Vec;

use super::Central;
use super::state::{Slab, State};
use crate::backend::panic::each;
use crate::backend::{Block, Uses};
use crate::memory::Memory;
use crate::monotonic::nanoseconds;
use crate::trace::{event, span};

impl<M: Memory> Central<M> {
    /// The time since which the longest idle slab is empty.
    pub fn idle_since(&self) -> Option<u64> {
        self.settled().empty_slabs().map(|(_, slab)| slab.last_use).min()
    }

    /// Frees empty slabs last used at least `age` ago, longest ago first, while more than `bytes` are reserved; returns their bytes. Flushes all caches.
    pub fn trim(&self, bytes: u64, age: Duration) -> u64 {
        let _moving = self.moving();
        self.empty_caches();
        self.trim_idle(bytes, age)
    }

    pub(super) fn trim_idle(&self, bytes: u64, age: Duration) -> u64 {
        let (_moving, _span) = (self.moving(), span!("trim", keep = bytes));
        self.collect();
        let now = (self.options.clock)();
        let (going, _) = self.removable();
        let gone = {
            let mut state = self.settled();
            let mut empty: Vec<(u64, u32)> = state
                .empty_slabs()
                .filter(|(number, slab)| going.contains(number) && now.saturating_sub(slab.last_use) >= nanoseconds(age))
                .map(|(number, slab)| (slab.last_use, number))
                .collect();
            empty.sort_unstable();
            let State { heap, slabs, vacant, reserved, .. } = &mut *state;
            let mut left = *reserved;
            let mut chosen: Vec<u32> = Vec::new();
            for (_, slab) in empty {
                if left <= bytes {
                    break;
                }
                left -= slabs.get(slab as usize).and_then(Option::as_ref).map_or(0, |slab| slab.block.layout.size() as u64);
                chosen.push(slab);
            }
            let wanted: HashSet<u32> = chosen.iter().copied().collect();
            heap.remove_empty(|slab| wanted.contains(&slab));
            vacant.extend(&chosen);
            chosen.into_iter().filter_map(|slab| slabs.get_mut(slab as usize).and_then(Option::take)).collect::<Vec<_>>()
        };
        let mut bytes = 0;
        each(gone, |slab| {
            bytes += slab.block.layout.size() as u64;
            self.give_back(slab.block, &Uses::NONE);
        });
        event!(debug, bytes, "trimmed");
        bytes
    }

    /// Returns the empty slabs whose free the backend would not defer, and whether others exist.
    pub(super) fn removable(&self) -> (HashSet<u32>, bool) {
        let backend = self.memory.backend();
        let empty = |(number, slab): (u32, &Slab)| (number, Block { ready: None, ..slab.block });
        let empty: Vec<(u32, Block)> = self.settled().empty_slabs().map(empty).collect();
        let count = empty.len();
        let going: HashSet<u32> = empty.into_iter().filter(|(_, block)| !backend.defers_free(block)).map(|(number, _)| number).collect();
        let has_others = going.len() < count;
        (going, has_others)
    }
}
