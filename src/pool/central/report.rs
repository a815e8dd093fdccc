use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashSet;
use std::sync::PoisonError;
use std::vec::Vec;

use super::{Central, CentralList};
use crate::memory::Memory;
use crate::pool::cache::{Counted, Entry, Idle};
use crate::pool::heap::PartId;
use crate::pool::statistics::{ClassStatistics, PartState, SlabView, Statistics};
use crate::pool::tag::Tag;

/// 0 if more frees than allocations were read.
fn live_bytes(sum: u64) -> u64 {
    u64::try_from(sum.cast_signed()).unwrap_or(0)
}

#[derive(Default)]
struct Sums {
    /// By class. `requested` wraps if a free was read without its allocation.
    classes: Vec<Counted>,
    cached: Cached,
}

#[derive(Clone, Copy, Default)]
struct Cached {
    bytes: u64,
    largest: u64,
}

impl Cached {
    fn add(&mut self, idle: &Idle) {
        let bytes = Tag(idle.tag).bytes();
        self.bytes += bytes;
        self.largest = self.largest.max(bytes);
    }
}

impl<M: Memory> Central<M> {
    pub fn statistics(&self) -> Statistics {
        let mut sums = self.sums();
        self.listed().for_each(|idle| sums.cached.add(&idle));
        self.figures(&sums)
    }

    /// Clamps the sums to possible values for the heap's state.
    fn figures(&self, sums: &Sums) -> Statistics {
        let (classes, mut cached) = (&sums.classes, sums.cached);
        let (requests, outside) = (classes.iter().map(Counted::requests).sum::<u64>(), self.counts.misses.load(Relaxed));
        let returns = classes.iter().map(|class| class.returns).sum::<u64>() + self.counts.returns.load(Relaxed);
        let returns = returns.min(requests + outside);
        let live = requests + outside - returns;
        let hits = classes.iter().map(|class| class.hits).sum::<u64>();
        let requested = classes.iter().fold(0_u64, |sum, class| sum.wrapping_add(class.requested));
        let state = self.lock_coalesced();
        // Under the lock: direct blocks count within their reservation.
        let direct = self.counts.requested.load(Relaxed);
        state.pending.iter().for_each(|(_, entry)| cached.add(&entry.idle));
        let taken = state.heap.total() - state.heap.free();
        let cached_bytes = if live == 0 { taken } else { cached.bytes.min(taken) };
        let held_bytes = if live == 0 { 0 } else { taken - cached_bytes + direct };
        Statistics {
            hits,
            misses: requests - hits + outside,
            returns,
            live,
            requested_bytes: live_bytes(requested.wrapping_add(direct)).min(held_bytes),
            held_bytes,
            reserved_bytes: state.reserved,
            reserved_peak: state.peak.max(state.reserved),
            slabs: state.upstream_blocks() as u64,
            free_bytes: state.heap.free(),
            movable_bytes: state.movable(),
            free_blocks: state.heap.free_parts(),
            largest_free: state.heap.largest(),
            cached_bytes,
            largest_cached: cached.largest.min(cached_bytes),
            pending: state.pending.len() as u64,
            memory_allocations: self.counts.allocations.load(Relaxed),
            memory_frees: self.counts.frees.load(Relaxed),
            memory_moves: self.counts.moves.load(Relaxed),
        }
    }

    pub fn classes(&self) -> Vec<ClassStatistics> {
        let sizes = (0..).map_while(|class| self.options.classes.size_of(class));
        sizes
            .zip(self.sums().classes)
            .map(|(bytes, class)| ClassStatistics { bytes, requests: class.requests(), hits: class.hits })
            .collect()
    }

    fn sums(&self) -> Sums {
        // Held: a thread that ends meanwhile is counted once.
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums = Sums { classes: self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone(), cached: Cached::default() };
        for cache in &caches.all {
            cache.ask(|contents| {
                for (sum, bin) in sums.classes.iter_mut().zip(&contents.bins) {
                    sum.add(&bin.counted());
                    bin.entries.iter().for_each(|entry| sums.cached.add(&entry.idle));
                }
            });
        }
        sums
    }

    fn listed(&self) -> impl Iterator<Item = Idle> {
        self.central_lists.iter().filter(|list| list.has_some()).flat_map(CentralList::read)
    }

    pub fn snapshot(&self) -> Vec<SlabView> {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).all.clone();
        let part = |idle: &Idle| Tag(idle.tag).part();
        let (mut entries, mut cached, mut pending): (Vec<Entry>, HashSet<PartId>, HashSet<PartId>) = Default::default();
        for cache in caches {
            cache.ask(|contents| entries.extend(contents.bins.iter().flat_map(|bin| &bin.entries)));
        }
        // Without a lock: calls the backend.
        let backend = self.memory.backend();
        for Entry { idle, used } in &entries {
            let is_pending = used.is_some_and(|ticket| !backend.is_complete(ticket));
            if is_pending { pending.extend(part(idle)) } else { cached.extend(part(idle)) }
        }
        cached.extend(self.listed().filter_map(|idle| part(&idle)));
        let state = self.lock_coalesced();
        pending.extend(state.pending.iter().filter_map(|(_, entry)| part(&entry.idle)));
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
            let part_state = match part {
                _ if is_free => PartState::Free,
                part if pending.contains(&part) => PartState::Pending,
                part if cached.contains(&part) => PartState::Cached,
                _ => PartState::Live,
            };
            if let Some(Some(view)) = views.get_mut(slab as usize) {
                view.parts.push((offset, bytes, part_state));
            }
        }
        let range = state.extent.as_ref().and_then(|extent| views.get_mut(extent.slab() as usize)?.take());
        let mut views: Vec<SlabView> = views.into_iter().flatten().collect();
        for view in &mut views {
            view.parts.sort_unstable_by_key(|&(offset, ..)| offset);
        }
        views.extend(range.into_iter().flat_map(|view| runs(view, state.slabs.len())));
        views
    }
}

/// Splits a view at addresses without memory. The first run keeps the number; `unused` and those above are the others'.
fn runs(view: SlabView, unused: usize) -> Vec<SlabView> {
    let SlabView { number, device_address, mut parts, .. } = view;
    parts.sort_unstable_by_key(|&(offset, ..)| offset);
    let runs = parts.chunk_by(|&(offset, bytes, _), &(next, ..)| offset + bytes == next);
    let numbers = core::iter::once(number).chain(unused as u32..);
    let view = |(number, run): (u32, &[(u64, u64, PartState)])| {
        let from = run.first().map_or(0, |&(offset, ..)| offset);
        let parts: Vec<_> = run.iter().map(|&(offset, bytes, state)| (offset - from, bytes, state)).collect();
        let device_address = device_address.and_then(|address| address.offset(from));
        SlabView { number, device_address, bytes: parts.iter().map(|(_, bytes, _)| bytes).sum(), parts }
    };
    numbers.zip(runs).map(view).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::backend::host::HostBackend;
    use crate::memory::{Buffer, Device};
    use crate::pool::Pool;

    #[test]
    fn statistics_stay_valid_if_a_free_is_read_before_its_alloc() {
        let backend = HostBackend::builder().device_memory(64 << 20).build().expect("a backend");
        let pool = Pool::builder(Device::new(&backend, 0)).build().expect("a pool");
        let buffers = [(); 3].map(|()| Buffer::<u8, _>::new(pool.clone(), 100_000).expect("room"));
        let before = pool.shared.sums();
        thread::spawn(move || drop(buffers)).join().expect("no panic");
        let mut torn = pool.shared.sums();
        for (sum, before) in torn.classes.iter_mut().zip(&before.classes) {
            sum.requested = sum.requested.wrapping_sub(before.requested);
            sum.misses -= before.misses;
        }
        let figures = pool.shared.figures(&torn);
        assert_eq!((figures.requested_bytes, figures.held_bytes, figures.live), (0, 0, 0));
        assert_eq!(figures.internal_waste(), 0.0);
        pool.trim_to(0);
        let figures = pool.shared.figures(&before);
        assert_eq!((figures.requested_bytes, figures.held_bytes, figures.internal_waste()), (0, 0, 0.0));
        let shown = pool.statistics();
        assert_eq!((shown.requested_bytes, shown.held_bytes, shown.reserved_bytes), (0, 0, 0));
    }
}
