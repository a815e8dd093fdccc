//! Takes blocks back: from full thread caches, from streams, and outside the slabs.
//!
//! A freed block takes the first of these ways that is open to it:
//!
//! 1. The freeing thread's cache, if the bin has room and at most one stream uses the block; see [`Bin`](crate::pool::cache::Bin).
//! 2. If the bin is full, its older half is spilled: blocks without open uses go to the class's [`CentralList`] while that has room. Blocks whose uses
//!    are incomplete go to the pending frees, all others to the heap, where they coalesce.
//! 3. A block that several streams use goes to the pending frees, until [`collect`](Central::collect) finds all uses complete.
//! 4. A direct block goes to the upstream memory. Its bytes stay reserved until its uses are complete and the backend no longer defers the free.
//!
//! Each block carries the time of its last use, so that a slab's idle time is that of its last used block. [`UNDATED`] stands for a use that was
//! not timed; the slab that it empties is dated at once, without the lock, because the clock is foreign code.

use core::cell::Cell;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::{CACHED_BYTES, Central, InTransit};
use crate::Result;
use crate::backend::{Block, Uses};
use crate::memory::Memory;
use crate::pool::cache::{Entry, Idle, UNDATED};
use crate::sys::panic::{at_most_one, both};

/// For blocks in transfer between two threads; others pass through the heap.
const LISTED_BLOCKS: u64 = 1024;

impl<M: Memory> Central<M> {
    fn max_listed(&self, class: usize) -> usize {
        (CACHED_BYTES / self.options.classes.bytes_of(class)).min(LISTED_BLOCKS) as usize
    }

    /// Entries with complete uses go to the heap, others to the pending frees. Each has the time of its last use.
    pub fn free(&self, entries: impl IntoIterator<Item = (Entry, u64)>) {
        self.free_then(entries, || {});
    }

    /// As [`free`](Self::free), and counts the transfer.
    pub(super) fn free_counted(&self, entries: Vec<(Entry, u64)>) {
        if !entries.is_empty() {
            self.free_then(entries, || self.note_transfer());
        }
    }

    /// Calls `moved` with the lock, after the entries have moved: the clock, which is read later, may panic.
    fn free_then(&self, entries: impl IntoIterator<Item = (Entry, u64)>, moved: impl FnOnce()) {
        let backend = self.memory.backend();
        let (open, complete): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(entry, _)| entry.used.is_some_and(|ticket| !backend.is_complete(ticket)));
        let emptied: Vec<u32> = {
            let mut state = self.lock();
            state.pending.extend(open.into_iter().map(|(entry, _)| (Uses::from(entry.used), entry)));
            let emptied = state.free_all(complete.iter().map(|(entry, since)| (entry, *since)));
            moved();
            emptied
        };
        self.date(&emptied);
    }

    /// Frees an entry that `uses` use. Blocks of an extent have no cache that dates them.
    pub fn free_one(&self, uses: &Uses, entry: &Entry) {
        let backend = self.memory.backend();
        let is_complete = uses.iter().all(|ticket| backend.is_complete(ticket));
        let since = Cell::new(UNDATED);
        let read = || {
            if is_complete && self.granularity.is_some() {
                since.set(at_most_one(|| (self.options.clocks.coarse)()).unwrap_or(UNDATED));
            }
        };
        // Also after a panic of the clock.
        let emptied = both(read, |_| {
            let mut state = self.lock();
            if is_complete {
                state.free(entry, since.get())
            } else {
                state.pending.push((*uses, *entry));
                None
            }
        });
        self.date(emptied.as_slice());
    }

    /// Takes the spilled entries of a full bin, last used at `since`: to their class's central list, or into the heap.
    pub fn free_spilled(&self, class: usize, mut entries: Vec<Entry>, since: u64, transit: InTransit<'_, M>) {
        let backend = self.memory.backend();
        let open: Vec<Entry> = entries.extract_if(.., |entry| entry.used.is_some_and(|ticket| !backend.is_complete(ticket))).collect();
        let left = entries.split_off(self.list(class, &entries, since));
        let emptied: Vec<u32> = {
            let mut state = self.lock();
            state.pending.extend(open.into_iter().map(|entry| (Uses::from(entry.used), entry)));
            self.note_transfer();
            transit.end(&mut state);
            state.free_all(left.iter().map(|entry| (entry, since)))
        };
        self.date(&emptied);
    }

    /// Adds entries without open uses to the central list; returns how many fitted.
    pub fn list(&self, class: usize, entries: &[Entry], since: u64) -> usize {
        let count = self.central_lists.get(class).map_or(0, |list| list.add(self.max_listed(class), entries, since));
        if count > 0 {
            self.note_transfer();
        }
        count
    }

    pub fn has_listed(&self, class: usize) -> bool {
        self.central_lists.get(class).is_some_and(CentralList::has_some)
    }

    /// Takes up to `count` entries from the central list; returns the latest time of their uses. Counts a transfer.
    pub fn unlist(&self, class: usize, count: usize, to: &mut Vec<Entry>) -> u64 {
        self.central_lists.get(class).map_or(0, |list| list.take(count, to, || self.note_transfer()))
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
        at_most_one(|| (self.options.clocks.exact)())
    }

    /// Frees a direct block.
    ///
    /// # Safety
    ///
    /// The caller owns the block, which this pool allocated, and gives it up. Only `uses` may still use it.
    #[cold]
    pub unsafe fn free_direct(&self, block: &Block, uses: &Uses) -> Result<()> {
        self.counts.returns.fetch_add(1, Relaxed);
        // SAFETY: the caller gives up a block of this pool, in use by `uses` at most.
        unsafe { self.forget_direct(Block { ..*block }, uses) }
    }

    /// As [`free_direct`](Self::free_direct), for a block that no caller received, which is not a return.
    ///
    /// # Safety
    ///
    /// As [`free_direct`](Self::free_direct).
    pub unsafe fn forget_direct(&self, mut block: Block, uses: &Uses) -> Result<()> {
        let bytes = block.layout.size() as u64;
        // First: after the free, another block may have this address.
        block.tag = self.lock().direct.remove(&block.address()).unwrap_or(block.tag);
        self.counts.requested.fetch_sub(bytes, Relaxed);
        // SAFETY: the caller gives up the block, in use by `uses` at most. It is the upstream memory's, whose tag it has again.
        unsafe { self.free_upstream(block, uses, Self::note_transfer) }
    }

    /// Frees a slab or the upstream memory's block. Updates the accounts even after a failure or panic; `note` counts the bytes that are no longer reserved.
    ///
    /// # Safety
    ///
    /// The upstream memory allocated the block, whose tag it has; the caller gives it up, and only `uses` may still use it.
    unsafe fn free_upstream(&self, block: Block, uses: &Uses, note: fn(&Self)) -> Result<()> {
        let account = Block { ready: None, ..block };
        let mut outcome = Ok(());
        // SAFETY: the caller gives up a block of the upstream memory, in use by `uses` at most: what `Memory::free` requires.
        let free = || outcome = self.call_upstream(|memory| unsafe { memory.free(&block, uses) });
        both(free, |_| {
            self.counts.frees.fetch_add(1, Relaxed);
            self.unreserve(account, uses, note);
        });
        outcome
    }

    pub(super) fn free_slab(&self, block: Block, uses: &Uses) {
        self.free_removed(block, uses, Self::note_transfer);
    }

    /// Frees memory that served no request: it returns to where it was.
    pub(super) fn give_back(&self, block: Block) {
        self.free_removed(block, &Uses::NONE, Self::note_return);
    }

    pub(super) fn free_removed(&self, block: Block, uses: &Uses, note: fn(&Self)) {
        // SAFETY: a slab of this memory, removed from the table, in use by `uses` at most.
        if let Err(error) = unsafe { self.free_upstream(block, uses, note) } {
            self.memory.backend().unreported(error);
        }
    }

    /// Releases a freed block's reservation; if it is in use or deferred, a later [`collect`](Self::collect) does so. The block serves queries.
    fn unreserve(&self, block: Block, uses: &Uses, note: fn(&Self)) {
        let backend = self.memory.backend();
        let is_gone = uses.iter().all(|ticket| backend.is_complete(ticket)) && !backend.is_deferred(&block);
        let mut state = self.lock();
        if is_gone {
            state.reserved -= block.layout.size() as u64;
            note(self);
        } else {
            state.freed_upstream.push((*uses, block));
        }
    }
}

/// A size class's central free list: surplus blocks of threads, without open uses.
///
/// `len` repeats the length outside the mutex, so that a request of a class without surplus takes no lock.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct CentralList {
    listed: Mutex<Listed>,
    len: AtomicUsize,
}

#[derive(Default)]
struct Listed {
    entries: Vec<Idle>,
    /// The latest time of a use of an entry.
    since: u64,
}

impl CentralList {
    /// `since` is the latest time of a use of the entries. Returns how many fitted.
    fn add(&self, most: usize, entries: &[Entry], since: u64) -> usize {
        let mut listed = self.lock();
        let count = most.saturating_sub(listed.entries.len()).min(entries.len());
        listed.since = if listed.entries.is_empty() { since } else { listed.since.max(since) };
        listed.entries.extend(entries.iter().take(count).map(|entry| entry.idle));
        self.len.store(listed.entries.len(), Release);
        count
    }

    pub(super) fn has_some(&self) -> bool {
        // SYNC POINT: central list emptied. Pairs with take: a thread that finds the list empty also sees the transfer counted.
        self.len.load(Acquire) > 0
    }

    /// Moves up to `most` entries, newest first, to `to`; returns the latest time of their uses. Calls `counts` before another thread can see the new
    /// length: a request that finds the list empty knows then that memory is moving, and searches again.
    pub(super) fn take(&self, most: usize, to: &mut Vec<Entry>, counts: impl FnOnce()) -> u64 {
        let mut listed = self.lock();
        let left = listed.entries.len().saturating_sub(most);
        to.extend(listed.entries.get(left..).unwrap_or_default().iter().map(|&idle| Entry { idle, used: None }));
        listed.entries.truncate(left);
        counts();
        // SYNC POINT: central list emptied. Pairs with has_some.
        self.len.store(left, Release);
        listed.since
    }

    pub(super) fn read(&self) -> Vec<Idle> {
        self.lock().entries.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
