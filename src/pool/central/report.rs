//! What a pool says of itself.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashSet;
use std::sync::PoisonError;
use std::vec::Vec;

use super::Central;
use crate::memory::Memory;
use crate::pool::cache::{Counted, Idle};
use crate::pool::heap::PartId;
use crate::pool::shelf::Shelf;
use crate::pool::statistics::{ClassStatistics, PartState, SlabView, Statistics};
use crate::pool::tag::Tag;

impl<M: Memory> Central<M> {
    pub fn statistics(&self) -> Statistics {
        let (classes, mut cached) = self.counted();
        let direct = self.counts.requested.load(Relaxed);
        let (requests, outside) = (classes.iter().map(Counted::requests).sum::<u64>(), self.counts.misses.load(Relaxed));
        let returns = classes.iter().map(|class| class.returns).sum::<u64>() + self.counts.returns.load(Relaxed);
        let hits = classes.iter().map(|class| class.hits).sum::<u64>();
        let requested = classes.iter().fold(direct, |sum, class| sum.wrapping_add(class.requested));
        cached += self.shelved().map(|idle| Tag(idle.tag).bytes()).sum::<u64>();
        let state = self.settled();
        cached += state.pending.iter().map(|(_, entry)| Tag(entry.idle.tag).bytes()).sum::<u64>();
        Statistics {
            hits,
            misses: requests - hits + outside,
            returns,
            live: (requests + outside).saturating_sub(returns),
            requested_bytes: requested,
            held_bytes: (state.heap.total() - state.heap.free()).saturating_sub(cached) + direct,
            reserved_bytes: state.reserved,
            reserved_peak: state.peak,
            slabs: state.slabs.iter().flatten().count() as u64,
            free_bytes: state.heap.free(),
            free_blocks: state.heap.pieces(),
            largest_free: state.heap.largest(),
            pending: state.pending.len() as u64,
            memory_allocations: self.counts.allocations.load(Relaxed),
            memory_frees: self.counts.frees.load(Relaxed),
        }
    }

    /// What was asked of each class.
    pub fn classes(&self) -> Vec<ClassStatistics> {
        let (counted, _) = self.counted();
        let sizes = (0..).map_while(|class| self.classes.size_of(class));
        sizes.zip(counted).map(|(bytes, class)| ClassStatistics { bytes, requests: class.requests(), hits: class.hits }).collect()
    }

    /// Every class's counts, and the bytes that caches hold.
    fn counted(&self) -> (Vec<Counted>, u64) {
        // Held, so that no thread that ends is counted twice or not at all.
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut classes = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut cached = 0;
        for cache in &caches.all {
            cache.ask(|kept| {
                for (sum, bin) in classes.iter_mut().zip(&kept.bins) {
                    sum.add(&bin.counted);
                    cached += bin.entries.iter().map(|entry| Tag(entry.idle.tag).bytes()).sum::<u64>();
                }
            });
        }
        (classes, cached)
    }

    /// What lies on the shelves.
    fn shelved(&self) -> impl Iterator<Item = Idle> {
        self.shelves.iter().filter(|shelf| shelf.has_some()).flat_map(Shelf::read)
    }

    pub fn snapshot(&self) -> Vec<SlabView> {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).all.clone();
        let mut cached: HashSet<PartId> = HashSet::new();
        let part = |idle: &Idle| Tag(idle.tag).part();
        for cache in caches {
            cache.ask(|kept| cached.extend(kept.bins.iter().flat_map(|bin| &bin.entries).map(|entry| &entry.idle).filter_map(part)));
        }
        cached.extend(self.shelved().filter_map(|idle| part(&idle)));
        let state = self.settled();
        cached.extend(state.pending.iter().filter_map(|(_, entry)| part(&entry.idle)));
        let mut views: Vec<Option<SlabView>> = state
            .slabs
            .iter()
            .zip(0..)
            .map(|(slab, number)| {
                let block = &slab.as_ref()?.block;
                let (device_address, bytes) = (block.device_address, block.layout.size() as u64);
                Some(SlabView { number, device_address, bytes, parts: Vec::new() })
            })
            .collect();
        for (part, slab, offset, bytes, is_free) in state.heap.parts() {
            let part_state = match (is_free, cached.contains(&part)) {
                (true, _) => PartState::Free,
                (false, true) => PartState::Cached,
                (false, false) => PartState::Live,
            };
            if let Some(Some(view)) = views.get_mut(slab as usize) {
                view.parts.push((offset, bytes, part_state));
            }
        }
        let mut views: Vec<SlabView> = views.into_iter().flatten().collect();
        for view in &mut views {
            view.parts.sort_unstable_by_key(|&(offset, ..)| offset);
        }
        views
    }
}
