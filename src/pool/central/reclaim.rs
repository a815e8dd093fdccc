//! Makes memory available that is free but out of reach: completes pending frees, flushes thread caches, frees empty slabs, and waits.
//!
//! # How a request waits without missing memory
//!
//! A request that fails must be sure that no memory could have served it. Memory can be on its way: a thread that spills its cache holds blocks on its
//! stack, and an upstream allocation holds reserved bytes. Two counters make this visible:
//!
//! - [`State::in_transit`](super::State): threads that hold such memory now. A thread counts itself, with the guard [`InTransit`], before others can find
//!   the memory gone: before it takes it, or, in a spill, while it still has its cache's lock. It leaves after the memory is in its new place. Until its
//!   patience ends, a waiting request does not end while this is above 0.
//! - `progress`: transfers that have ended. A thread counts a transfer before its guard's drop. A waiting request reads the count before it searches;
//!   after a failed search it reads `in_transit` and then the count again. If the first is 0 and the second unchanged, it has missed nothing. Swapped
//!   reads would miss a transfer that ends between them.
//!
//! A thread that takes blocks from a central list puts them into its own cache and holds no guard: it counts before the shorter list is visible
//! (`CentralList::take`), so a flush that passed this cache before, and then finds the list empty, finds the count changed.
//!
//! A request's own transfers are no news to it. So each thread also counts its transfers in [`OWN`], and
//! [`progress_by_others`](Central::progress_by_others) is the difference, which changes with the transfers of other threads alone while this thread's
//! transfers are in this pool: so it is read anew after the callback, which may use other pools.
//!
//! An extension hides free parts beside its place, and returns them when it fails. Searches that found nothing are noted in
//! [`State::missed`](super::State): the return is news only if a part now serves one of them, or if a request was refused meanwhile. If each return
//! were, two waiting requests could wake each other for as long as they wait. So a request that needs several returned handles together learns of them only by
//! the next paragraph.
//!
//! Ordinary frees count no transfer, since the warm path would pay for it. A waiting request finds their memory by looking without news: after a
//! millisecond, at each doubling of that time, and before it fails, unless it fails without having waited. A free to the upstream memory counts as a transfer.
//!
//! # How long
//!
//! Up to the patience for pending frees, transfers, and kernels that defer frees. Beyond it, up to the growth patience, for upstream allocations that
//! other threads began within the patience: a slab that the driver is mapping is better than a failure. Beyond the patience, a thread inside an
//! upstream allocation does not wait for others' allocations, because theirs may wait for it. The bound remains necessary: the upstream memory's `alloc` may
//! itself wait for this thread, which no pool can detect.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use core::{iter, mem, ptr};
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Instant;
use std::vec::Vec;

use super::reservation::is_growing;
use super::{Central, Slab, State, take_all};
use crate::Result;
use crate::backend::{Block, Ticket, Uses};
use crate::memory::Memory;
use crate::pool::cache::{self, Entry, UNDATED};
use crate::sys::barrier::{Barrier, System};
use crate::sys::clock::nanoseconds;
use crate::sys::panic::each;
use crate::trace::{event, span};

/// The time between two polls of a waiting request.
const POLL: Duration = Duration::from_micros(50);

/// The time after which a waiting request looks without news. It doubles each time.
const LOOK: Duration = Duration::from_millis(1);

/// Searches for memory.
pub(in crate::pool) type Search<'a, T> = &'a dyn Fn() -> Result<Option<T>>;

thread_local! {
    /// This thread's transfers, of all pools.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// Counts its thread in [`State::in_transit`] while it lives.
pub(in crate::pool) struct InTransit<'a, M: Memory>(pub(super) &'a Central<M>);

impl<M: Memory> InTransit<'_, M> {
    /// Ends under the lock that the caller holds.
    pub(super) fn end(self, state: &mut State) {
        state.in_transit -= 1;
        mem::forget(self);
    }
}

impl<M: Memory> Drop for InTransit<'_, M> {
    fn drop(&mut self) {
        self.0.lock().in_transit -= 1;
    }
}

impl<M: Memory> Central<M> {
    /// This thread may take memory out of others' reach; it [counts](Self::note_progress) each transfer before the guard's drop.
    pub fn start_transit(&self) -> InTransit<'_, M> {
        self.lock().in_transit += 1;
        InTransit(self)
    }

    /// Counts a transfer. Relaxed: the lock that the guard's drop takes, or the central list's length, publishes the count.
    pub(super) fn note_progress(&self) {
        self.progress.fetch_add(1, Relaxed);
        OWN.set(OWN.get().wrapping_add(1));
    }

    /// A number that changes only when another thread transfers memory, here or in the other pool.
    pub fn progress_by_others(&self, other: Option<&Self>) -> u64 {
        let count = |pool: &Self| pool.progress.load(Relaxed);
        count(self).wrapping_add(other.map_or(0, count)).wrapping_sub(OWN.get())
    }

    /// If the upstream memory is a pool, its transfers do not count here.
    pub(super) fn call_upstream<R>(&self, call: impl FnOnce(&M) -> R) -> R {
        let own = OWN.get();
        let result = call(&self.memory);
        OWN.set(own);
        result
    }

    /// Waits; calls `again` after each transfer of another thread and each completed free, and `look` now and then; returns their result. `None` if nothing
    /// is left to wait for, after the patience, or, while other threads' allocations are awaited, after the growth patience. `seen` is
    /// [the count](Self::progress_by_others) before the last search. Also watches the pool `other`.
    pub fn wait<T>(&self, other: Option<&Self>, mut seen: u64, again: Search<'_, T>, look: Search<'_, T>) -> Result<Option<T>> {
        let (begun, is_awaited) = (Instant::now(), is_growing());
        let (mut has_slept, mut next_look) = (false, LOOK);
        let (mut last_growths, mut were_deferred) = ([None; 2], [self, other.unwrap_or(self)].map(|pool| pool.granularity.is_some()));
        loop {
            let elapsed = begun.elapsed();
            let is_late = elapsed >= self.options.patience;
            let is_too_late = elapsed >= self.options.patience.saturating_add(self.options.growth_patience);
            let (mut is_something_left, mut has_come) = (false, false);
            for ((pool, last), was_deferred) in iter::once(self).chain(other).zip(&mut last_growths).zip(&mut were_deferred) {
                let (freeable, is_deferred) = pool.freeable_slabs();
                let are_deferred = pool.defers_handles();
                is_something_left |= match is_late {
                    true => !is_awaited && !is_too_late && pool.is_growing_before(*last.get_or_insert_with(|| pool.lock().growths)),
                    false => is_deferred || are_deferred || pool.has_memory_on_its_way(),
                };
                has_come |= !freeable.is_empty() || mem::replace(was_deferred, are_deferred) && !are_deferred;
                has_come |= pool.collect();
            }
            let progress = self.progress_by_others(other);
            if has_come || progress != seen {
                seen = progress;
                if let Some(found) = again()? {
                    return Ok(Some(found));
                }
                if !is_late {
                    continue;
                }
            }
            if has_slept && (elapsed >= next_look || !is_something_left) {
                next_look = elapsed.saturating_mul(2).max(LOOK);
                if let Some(found) = look()? {
                    return Ok(Some(found));
                }
            }
            if !is_something_left {
                return Ok(None);
            }
            thread::sleep(POLL);
            has_slept = true;
        }
    }

    fn has_memory_on_its_way(&self) -> bool {
        let state = self.lock();
        !state.pending.is_empty() || !state.freed_upstream.is_empty() || state.in_transit > 0
    }

    fn is_growing_before(&self, growth: u64) -> bool {
        self.lock().growing.iter().any(|other| other.number < growth)
    }

    /// Frees entries and releases reservations whose uses are complete; returns whether there were any. A use that failed is complete too: its error is
    /// reported to its waiter.
    ///
    /// Polls the backend without the lock, so the pending frees that it polls are a copy. Those that another thread adds or completes meanwhile are
    /// judged by the same set of complete tickets, which stays true: a complete ticket never becomes incomplete.
    pub(super) fn collect(&self) -> bool {
        // First: it may panic.
        let since = if self.granularity.is_some() { self.now().unwrap_or(UNDATED) } else { UNDATED };
        let (polled, freed, _transit): (HashSet<Ticket>, _, _) = {
            let mut state = self.lock();
            // Taken out, because `is_deferred` is a call of the backend: meanwhile this thread counts as in transit.
            let freed = mem::take(&mut state.freed_upstream);
            state.in_transit += u32::from(!freed.is_empty());
            let transit = if freed.is_empty() { None } else { Some(InTransit(self)) };
            let uses = state.pending.iter().map(|(uses, _)| uses).chain(freed.iter().map(|(uses, _)| uses));
            (uses.flat_map(Uses::iter).collect(), freed, transit)
        };
        if polled.is_empty() && freed.is_empty() {
            return false;
        }
        let backend = self.memory.backend();
        let complete: HashSet<Ticket> = polled.into_iter().filter(|&ticket| backend.is_complete(ticket)).collect();
        let is_over = |uses: &Uses| uses.iter().all(|ticket| complete.contains(&ticket));
        let (gone, left): (Vec<_>, Vec<_>) = freed.into_iter().partition(|(uses, block)| is_over(uses) && !backend.is_deferred(block));
        let mut state = self.lock();
        let (over, open): (Vec<_>, Vec<_>) = mem::take(&mut state.pending).into_iter().partition(|(uses, _)| is_over(uses));
        state.pending = open;
        let emptied = state.free_all(over.iter().map(|(_, entry)| (entry, since)));
        state.freed_upstream.extend(left);
        state.reserved -= gone.iter().map(|(_, block)| block.layout.size() as u64).sum::<u64>();
        let has_moved = !over.is_empty() || !gone.is_empty();
        if has_moved {
            self.note_progress();
        }
        drop(state);
        self.date(&emptied);
        has_moved
    }

    /// Moves all blocks of thread caches and central lists to the heap, or, those in use, to the pending frees; returns their number. Caches out of reach
    /// keep theirs.
    pub(super) fn flush_caches(&self) -> usize {
        if self.options.is_exact {
            return 0;
        }
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).all.clone();
        let _transit = self.start_transit();
        let own = cache::recent(self.id, ptr::from_ref);
        let mut entries: Vec<(Entry, u64)> = Vec::new();
        for cache in &caches {
            entries.extend(match own == Some(Arc::as_ptr(cache)) {
                // SAFETY: the calling thread's cache, which no caller up the stack accesses.
                true => unsafe { cache.own(take_all) },
                false => cache.ask(take_all).unwrap_or_default(),
            });
        }
        // Central lists last: they include blocks that threads spill there meanwhile.
        for list in self.central_lists.iter().filter(|list| list.has_some()) {
            let mut listed = Vec::new();
            let since = list.take(usize::MAX, &mut listed, || ());
            entries.extend(listed.into_iter().map(|entry| (entry, since)));
        }
        let count = entries.len();
        self.free_counted(entries);
        count
    }

    /// Returns the number of other threads' caches, if the system call that grants access to them fails: then [`flush_caches`](Self::flush_caches)
    /// leaves their blocks there.
    pub(super) fn unreachable_caches(&self) -> u64 {
        if self.options.is_exact || System::seldom() {
            return 0;
        }
        let own = cache::recent(self.id, ptr::from_ref);
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        caches.all.iter().filter(|cache| own != Some(Arc::as_ptr(cache))).count() as u64
    }

    /// The time since which the longest idle slab is empty.
    pub fn idle_since(&self) -> Option<u64> {
        let slabs = self.lock_coalesced().empty_slabs().map(|(_, slab)| slab.last_use).min();
        slabs.into_iter().chain(self.handles_idle_since()).min()
    }

    /// Frees empty slabs last used at least `age` ago, longest ago first, while more than `keep` bytes are reserved; returns their bytes. Flushes all
    /// caches first.
    pub fn trim(&self, keep: u64, age: Duration) -> u64 {
        let _transit = self.start_transit();
        self.flush_caches();
        self.trim_flushed(keep, age)
    }

    /// As [`trim`](Self::trim), without a flush.
    pub(super) fn trim_flushed(&self, keep: u64, age: Duration) -> u64 {
        let (_transit, _span) = (self.start_transit(), span!("trim", keep = keep));
        self.collect();
        let now = (self.options.clock)();
        let bytes = self.trim_slabs(keep, age, now) + self.trim_handles(keep, age, now);
        event!(debug, bytes, "trimmed");
        bytes
    }

    /// As [`trim_flushed`](Self::trim_flushed), for slabs only.
    pub(super) fn trim_empty_slabs(&self, keep: u64) -> u64 {
        let _transit = self.start_transit();
        self.collect();
        self.trim_slabs(keep, Duration::ZERO, (self.options.clock)())
    }

    fn trim_slabs(&self, keep: u64, age: Duration, now: u64) -> u64 {
        let (freeable, _) = self.freeable_slabs();
        let gone = {
            // A slab in `freeable` may have been taken since: only those that are still empty are removed, under one lock.
            let mut state = self.lock_coalesced();
            let mut empty: Vec<(u64, u32)> = state
                .empty_slabs()
                .filter(|(number, slab)| freeable.contains(number) && now.saturating_sub(slab.last_use) >= nanoseconds(age))
                .map(|(number, slab)| (slab.last_use, number))
                .collect();
            empty.sort_unstable();
            let State { heap, slabs, vacant, reserved, .. } = &mut *state;
            let mut left = *reserved;
            let mut chosen: Vec<u32> = Vec::new();
            for (_, slab) in empty {
                if left <= keep {
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
            self.free_slab(slab.block, &Uses::NONE);
        });
        bytes
    }

    /// Returns the empty slabs whose free the backend would not defer, and whether others exist. Calls the backend without the lock.
    fn freeable_slabs(&self) -> (HashSet<u32>, bool) {
        let backend = self.memory.backend();
        let empty = |(number, slab): (u32, &Slab)| (number, Block { ready: None, ..slab.block });
        let empty: Vec<(u32, Block)> = self.lock_coalesced().empty_slabs().map(empty).collect();
        let count = empty.len();
        let freeable: HashSet<u32> = empty.into_iter().filter(|(_, block)| !backend.defers_free(block)).map(|(number, _)| number).collect();
        let has_deferred = freeable.len() < count;
        (freeable, has_deferred)
    }
}
