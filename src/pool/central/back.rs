use core::{mem, ptr};
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::vec::Vec;

use super::state::State;
use super::{CACHED_BYTES, Central, LISTED_BLOCKS, Moving, take_all};
use crate::backend::panic::at_most_one;
use crate::backend::{Ticket, Uses};
use crate::barrier::{Barrier, System};
use crate::memory::Memory;
use crate::pool::cache::{Entry, UNDATED};
use crate::pool::free_list::FreeList;
use crate::pool::local;

/// Frees entries with the times of their last uses. Returns the emptied slabs, for the caller to date.
fn give_all<'a>(state: &mut State, entries: impl IntoIterator<Item = (&'a Entry, u64)>) -> Vec<u32> {
    let mut emptied: Vec<u32> = entries.into_iter().filter_map(|(entry, since)| state.give(entry, since)).collect();
    emptied.extend(state.settle());
    emptied
}

impl<M: Memory> Central<M> {
    fn max_listed(&self, class: usize) -> usize {
        (CACHED_BYTES / self.options.classes.bytes_of(class)).min(LISTED_BLOCKS) as usize
    }

    /// Entries with complete uses go to the heap, others to the pending frees. Each has the time of its last use.
    pub fn give(&self, entries: impl IntoIterator<Item = (Entry, u64)>) {
        let backend = self.memory.backend();
        let (open, over): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(entry, _)| entry.used.is_some_and(|ticket| !backend.is_complete(ticket)));
        let emptied: Vec<u32> = {
            let mut state = self.lock();
            state.pending.extend(open.into_iter().map(|(entry, _)| (Uses::from(entry.used), entry)));
            give_all(&mut state, over.iter().map(|(entry, since)| (entry, *since)))
        };
        self.date(&emptied);
    }

    pub fn give_one(&self, uses: &Uses, entry: &Entry) {
        let backend = self.memory.backend();
        let is_over = uses.iter().all(|ticket| backend.is_complete(ticket));
        let emptied = {
            let mut state = self.lock();
            if is_over {
                state.give(entry, UNDATED)
            } else {
                state.pending.push((*uses, *entry));
                None
            }
        };
        self.date(emptied.as_slice());
    }

    /// Takes surplus entries, last used at `since`, that a thread has been moving: to their class's central free list, or into the heap.
    pub fn share(&self, class: usize, mut entries: Vec<Entry>, since: u64, moving: Moving<'_, M>) {
        let backend = self.memory.backend();
        let open: Vec<Entry> = entries.extract_if(.., |entry| entry.used.is_some_and(|ticket| !backend.is_complete(ticket))).collect();
        let left = entries.split_off(self.list(class, &entries, since));
        let emptied: Vec<u32> = {
            let mut state = self.lock();
            state.pending.extend(open.into_iter().map(|entry| (Uses::from(entry.used), entry)));
            self.moved();
            moving.end(&mut state);
            give_all(&mut state, left.iter().map(|entry| (entry, since)))
        };
        self.date(&emptied);
    }

    /// Adds entries without open uses to the central free list; returns how many fitted.
    pub fn list(&self, class: usize, entries: &[Entry], since: u64) -> usize {
        let count = self.free_lists.get(class).map_or(0, |list| list.add(self.max_listed(class), entries, since));
        if count > 0 {
            self.moved();
        }
        count
    }

    pub fn has_listed(&self, class: usize) -> bool {
        self.free_lists.get(class).is_some_and(FreeList::has_some)
    }

    /// Takes up to `count` entries from the central free list; returns the latest time of their uses. Counts a move.
    pub fn unlist(&self, class: usize, count: usize, to: &mut Vec<Entry>) -> u64 {
        self.free_lists.get(class).map_or(0, |list| list.take(count, to, || self.moved()))
    }

    /// Dates emptied slabs whose last use is unknown. Reads the clock without the lock.
    pub(super) fn date(&self, emptied: &[u32]) {
        if emptied.is_empty() {
            return;
        }
        // Undated slabs are still freed for room.
        let Some(now) = self.now() else { return };
        let mut state = self.lock();
        for &number in emptied {
            if let Some(Some(slab)) = state.slabs.get_mut(number as usize)
                && slab.last_use == UNDATED
            {
                slab.last_use = now;
            }
        }
    }

    /// Reads the pool's clock, which is foreign code: call it without a lock. `None` if it panics while the thread panics already.
    pub fn now(&self) -> Option<u64> {
        at_most_one(|| (self.options.clock)())
    }

    /// Frees entries and releases reservations with complete uses; returns whether there were any.
    pub(super) fn collect(&self) -> bool {
        let (asked, leaving, _moving): (HashSet<Ticket>, _, _) = {
            let mut state = self.lock();
            let leaving = mem::take(&mut state.leaving);
            state.moving += u32::from(!leaving.is_empty());
            let moving = if leaving.is_empty() { None } else { Some(Moving(self)) };
            let uses = state.pending.iter().map(|(uses, _)| uses).chain(leaving.iter().map(|(uses, _)| uses));
            (uses.flat_map(Uses::iter).collect(), leaving, moving)
        };
        if asked.is_empty() && leaving.is_empty() {
            return false;
        }
        let backend = self.memory.backend();
        let complete: HashSet<Ticket> = asked.into_iter().filter(|&ticket| backend.is_complete(ticket)).collect();
        let is_over = |uses: &Uses| uses.iter().all(|ticket| complete.contains(&ticket));
        let (gone, left): (Vec<_>, Vec<_>) = leaving.into_iter().partition(|(uses, block)| is_over(uses) && !backend.is_deferred(block));
        let mut state = self.lock();
        let (over, open): (Vec<_>, Vec<_>) = mem::take(&mut state.pending).into_iter().partition(|(uses, _)| is_over(uses));
        state.pending = open;
        let emptied = give_all(&mut state, over.iter().map(|(_, entry)| (entry, UNDATED)));
        state.leaving.extend(left);
        state.reserved -= gone.iter().map(|(_, block)| block.layout.size() as u64).sum::<u64>();
        let has_moved = !over.is_empty() || !gone.is_empty();
        if has_moved {
            self.moved();
        }
        drop(state);
        self.date(&emptied);
        has_moved
    }

    /// Frees all blocks in thread caches and central free lists; returns their number.
    pub(super) fn empty_caches(&self) -> usize {
        if self.options.is_exact {
            return 0;
        }
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner).all.clone();
        let _moving = self.moving();
        // Central free lists last: they include blocks that threads move there meanwhile.
        let own = local::lately(self.id, ptr::from_ref);
        let mut entries: Vec<(Entry, u64)> = Vec::new();
        for cache in &caches {
            entries.extend(match own == Some(Arc::as_ptr(cache)) {
                // SAFETY: the calling thread's cache, which no caller up the stack accesses.
                true => unsafe { cache.own(take_all) },
                false => cache.ask(take_all).unwrap_or_default(),
            });
        }
        for list in self.free_lists.iter().filter(|list| list.has_some()) {
            let mut listed = Vec::new();
            let since = list.take(usize::MAX, &mut listed, || ());
            entries.extend(listed.into_iter().map(|entry| (entry, since)));
        }
        let count = entries.len();
        self.put_back(entries);
        count
    }

    /// Returns the number of other threads' caches, if the system call that grants access to them fails: then [`empty_caches`](Self::empty_caches)
    /// leaves their blocks there.
    pub(super) fn unreachable_caches(&self) -> u64 {
        if self.options.is_exact || System::seldom() {
            return 0;
        }
        let own = local::lately(self.id, ptr::from_ref);
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        caches.all.iter().filter(|cache| own != Some(Arc::as_ptr(cache))).count() as u64
    }

    pub(super) fn put_back(&self, entries: Vec<(Entry, u64)>) {
        if entries.is_empty() {
            return;
        }
        self.give(entries);
        self.moved();
    }
}
