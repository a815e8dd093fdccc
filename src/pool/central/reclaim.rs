//! Makes memory available that is free but out of reach: completes pending frees, flushes thread caches, frees empty slabs, and waits.
//!
//! # How a request waits without missing memory
//!
//! A request that fails must be sure that no memory could have served it. Memory can be on its way: a thread that spills its cache holds blocks on its
//! stack, and an upstream allocation holds reserved bytes. Two counters make this visible:
//!
//! - [`State::in_transit`](super::State): guards of threads that hold such memory now. A thread counts itself, with the guard [`InTransit`], before others
//!   can find the memory gone: before it takes it, or, in a spill, while it still has its cache's lock. It leaves after the memory is in its new place. Until
//!   its patience ends, a waiting request does not end while this is above 0. A thread may hold several guards; a request inside this pool's own upstream
//!   allocation finds the guard of that allocation, and so fails only after its patience.
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
//! An extension hides free parts around its place, each growth takes bytes of the limit, and both may map memory that does not suffice; they give all of it
//! back when they fail. These *returns* have a count of their own, since they are no reason to search at once: a search may itself extend, so two waiting
//! requests would wake each other for as long as they wait. Nor do ordinary frees count as transfers, for which the warm path would pay. A request that has
//! waited, or that a return followed, finds the memory of both by looking without news: after a millisecond, at each doubling of that time, when nothing is
//! left to wait for, and once after its patience. If something returns during the look with nothing left to wait for, the next one is at the next doubling. So
//! it fails only after a search from which no other thread has hidden memory, or after a search that began after its patience. A request whose patience is over
//! at its first check, such as one of 0, does not wait for memory in transit.
//!
//! Frees to the upstream memory that are no returns count as transfers.
//!
//! # How long
//!
//! Up to the patience for pending frees, transfers, and kernels that defer frees. Beyond it, up to the growth patience, for upstream allocations that
//! other threads began within the patience: a slab that the driver is mapping is better than a failure. Beyond the patience, a thread inside an
//! upstream allocation does not wait for others' allocations, because theirs may wait for it. The bound remains necessary: the upstream memory's `alloc` may
//! itself wait for this thread, which no pool can detect.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
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
    /// What this thread has counted, of all pools.
    static OWN: Cell<Progress> = const { Cell::new(Progress { transfers: 0, returns: 0 }) };
}

/// Counts of memory that was out of others' reach, modulo 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) struct Progress {
    /// It is in its new place.
    pub(super) transfers: u64,
    /// It is back in its old one.
    pub(super) returns: u64,
}

impl Progress {
    fn each(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self { transfers: combine(self.transfers, other.transfers), returns: combine(self.returns, other.returns) }
    }
}

/// [`Progress`] of all threads of a pool.
#[derive(Default)]
pub(super) struct AtomicProgress {
    transfers: AtomicU64,
    returns: AtomicU64,
}

impl AtomicProgress {
    pub(super) fn read(&self) -> Progress {
        Progress { transfers: self.transfers.load(Relaxed), returns: self.returns.load(Relaxed) }
    }
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
    /// This thread may take memory out of others' reach; it [counts](Self::note_transfer) each transfer before the guard's drop.
    pub fn start_transit(&self) -> InTransit<'_, M> {
        self.lock().in_transit += 1;
        InTransit(self)
    }

    /// Counts a transfer. Relaxed: the lock that the guard's drop takes, or the central list's length, publishes the count.
    pub(super) fn note_transfer(&self) {
        self.progress.transfers.fetch_add(1, Relaxed);
        let own = OWN.get();
        OWN.set(Progress { transfers: own.transfers.wrapping_add(1), ..own });
    }

    /// Counts memory that returns to where it was. Relaxed, as a [transfer](Self::note_transfer).
    pub(super) fn note_return(&self) {
        self.progress.returns.fetch_add(1, Relaxed);
        let own = OWN.get();
        OWN.set(Progress { returns: own.returns.wrapping_add(1), ..own });
    }

    /// Counts that change only when another thread transfers or returns memory, here or in the other pool.
    pub fn progress_by_others(&self, other: Option<&Self>) -> Progress {
        let here = self.progress.read();
        let both = other.map_or(here, |other| here.each(other.progress.read(), u64::wrapping_add));
        both.each(OWN.get(), u64::wrapping_sub)
    }

    /// If the upstream memory is a pool, its transfers do not count here.
    pub(super) fn call_upstream<R>(&self, call: impl FnOnce(&M) -> R) -> R {
        let own = OWN.get();
        let result = call(&self.memory);
        OWN.set(own);
        result
    }

    /// Waits; calls `again` after each transfer of another thread and each completed free, while there are slabs to free, and once handles are no longer
    /// deferred; calls `look`, or after returns `again`, now and then; returns their result. `None` if nothing
    /// is left to wait for, after the patience, or, while other threads' allocations are awaited, after the growth patience. `seen` is
    /// [the count](Self::progress_by_others) before the last search. Also watches the pool `other`.
    ///
    /// `again` frees the slabs that can be freed: while there are some, it is called without a pause, until the patience ends.
    pub fn wait<T>(&self, other: Option<&Self>, mut seen: Progress, again: Search<'_, T>, look: Search<'_, T>) -> Result<Option<T>> {
        let (begun, is_awaited) = (Instant::now(), is_growing());
        // Whether memory may have come without news since the last search began, and whether that was a look with nothing left to wait for.
        let (mut is_stale, mut was_last, mut next_look) = (false, false, LOOK);
        // After the patience, one look with nothing left to wait for ends the request.
        let mut has_looked_late = false;
        // At first as if handles had been deferred: a kernel that ended between the failed search and the first check leaves no other news.
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
            let has_returned = progress.returns != seen.returns;
            is_stale |= has_returned;
            if has_come || progress.transfers != seen.transfers {
                (seen, is_stale) = (progress, false);
                if let Some(found) = again()? {
                    return Ok(Some(found));
                }
                if !is_late {
                    continue;
                }
            }
            if !is_something_left && (!is_stale || has_looked_late) {
                return Ok(None);
            }
            if is_stale && (elapsed >= next_look || !is_something_left && (is_late || !was_last)) {
                next_look = elapsed.saturating_mul(2).max(LOOK);
                has_looked_late |= is_late && !is_something_left;
                (seen, is_stale, was_last) = (progress, false, !is_something_left);
                // Bytes of the limit that returned may serve a slab, which a look does not allocate.
                let search = if has_returned { again } else { look };
                if let Some(found) = search()? {
                    return Ok(Some(found));
                }
                continue;
            }
            thread::sleep(POLL);
            is_stale = true;
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
            self.note_transfer();
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

    /// Returns the number of the caches, but for this thread's if it is in the table of recent ones, if the system call that grants access to others' fails:
    /// then [`flush_caches`](Self::flush_caches) leaves their blocks there.
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

    /// Frees empty slabs, then whole free handles, last used at least `age` ago, each longest ago first, while more than `keep` bytes are reserved; returns
    /// their bytes. Those of a deferred free stay reserved until it is done; a failed free is reported, and counts as freed. Flushes all caches first.
    pub fn trim(&self, keep: u64, age: Duration) -> u64 {
        let _transit = self.start_transit();
        self.flush_caches();
        self.trim_flushed(keep, age)
    }

    /// As [`trim`](Self::trim), without a flush.
    pub(super) fn trim_flushed(&self, keep: u64, age: Duration) -> u64 {
        let (_transit, _span) = (self.start_transit(), span!("trim", keep = keep));
        self.collect();
        let now = (self.options.clocks.exact)();
        let bytes = self.trim_slabs(keep, age, now) + self.trim_handles(keep, age, now);
        event!(debug, bytes, "trimmed");
        bytes
    }

    /// As [`trim_flushed`](Self::trim_flushed), for slabs only.
    pub(super) fn trim_empty_slabs(&self, keep: u64) -> u64 {
        let _transit = self.start_transit();
        self.collect();
        self.trim_slabs(keep, Duration::ZERO, (self.options.clocks.exact)())
    }

    fn trim_slabs(&self, keep: u64, age: Duration, now: u64) -> u64 {
        let (freeable, _) = self.freeable_slabs();
        let gone = {
            // A slab in `freeable` may have been taken since: only those that are still empty are removed, under one lock. A number may be that of a later
            // slab: then the backend may defer its free.
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

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::backend::host::HostBackend;
    use crate::memory::{Buffer, Device};
    use crate::pool::Pool;
    use crate::pool::heap::Zone;

    /// Looks without success, while another thread's memory returns. The times of the looks.
    fn looks(patience: Duration, mut returns: impl FnMut() -> bool) -> Vec<Duration> {
        let backend = HostBackend::builder().device_memory(1 << 20).build().expect("a backend");
        let pool = Pool::builder(Device::new(&backend, 0)).slab(1 << 16).patience(patience).build().expect("a pool");
        let central = &*pool.shared;
        let seen = central.progress_by_others(None);
        let mut note = || {
            if returns() {
                thread::scope(|scope| scope.spawn(|| central.note_return()).join().expect("no panic"));
            }
        };
        note();
        let (begun, state) = (Instant::now(), core::cell::RefCell::new((Vec::new(), note)));
        let look = || {
            let (times, note) = &mut *state.borrow_mut();
            times.push(begun.elapsed());
            note();
            Ok(None::<()>)
        };
        assert!(central.wait(None, seen, &look, &look).expect("no error").is_none());
        state.into_inner().0
    }

    #[test]
    fn a_request_looks_again_if_memory_returned_during_its_search() {
        let mut left = [true, true, true, false].into_iter();
        assert_eq!(looks(Duration::from_secs(600), || left.next().expect("no further look")).len(), 3);
        assert_eq!(looks(Duration::from_secs(600), || false).len(), 0);
        assert_eq!(looks(Duration::ZERO, || true).len(), 1, "patience does not spare the first look");
    }

    #[test]
    fn a_transfer_counts_although_the_clock_panics() {
        let (backend, is_broken) =
            (HostBackend::builder().device_memory(1 << 20).build().expect("a backend"), Arc::new(AtomicBool::new(false)));
        let panics = Arc::clone(&is_broken);
        let clock = move || if panics.load(Relaxed) { panic!("a clock that a test asked for") } else { 0 };
        let pool = Pool::builder(Device::new(&backend, 0)).slab(1 << 16).clock(clock).build().expect("a pool");
        drop(Buffer::<u8, _>::new(pool.clone(), 5000).expect("room"));
        let central = &*pool.shared;
        central.flush_caches();
        let entry = central.take(5000, 1, Zone::Small).or_else(|| central.take(5000, 1, Zone::Large)).expect("a free slab");
        let before = central.progress.read().transfers;
        is_broken.store(true, Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| central.free_counted(std::vec![(entry, UNDATED)]))).is_err());
        assert_eq!(central.progress.read().transfers - before, 1);
        is_broken.store(false, Relaxed);
    }

    #[test]
    fn requests_whose_searches_return_memory_do_not_keep_each_other_busy() {
        let most = 3 + 20_u32.ilog2() as usize;
        let times = looks(20 * LOOK, || true);
        assert!(times.last().is_some_and(|&last| last >= 20 * LOOK), "the last look is after the patience: {times:?}");
        assert!(times.len() <= most, "{times:?}, at most at 0, 1, 2, 4, 8, 16 and 20 ms");
    }
}
