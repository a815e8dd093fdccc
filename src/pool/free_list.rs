//! [`FreeList`]: a size class's central free list, for threads' surplus blocks.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::cache::{Entry, Idle};

#[derive(Default)]
struct Listed {
    entries: Vec<Idle>,
    /// The latest time of a use of an entry.
    since: u64,
}

#[derive(Default)]
#[repr(align(128))]
pub(super) struct FreeList {
    idle: Mutex<Listed>,
    len: AtomicUsize,
}

impl FreeList {
    /// `since` is the latest time of a use of the entries. Returns how many fitted.
    pub fn add(&self, most: usize, entries: &[Entry], since: u64) -> usize {
        let mut there = self.lock();
        let count = most.saturating_sub(there.entries.len()).min(entries.len());
        there.since = if there.entries.is_empty() { since } else { there.since.max(since) };
        there.entries.extend(entries.iter().take(count).map(|entry| entry.idle));
        self.len.store(there.entries.len(), Release);
        count
    }

    pub fn has_some(&self) -> bool {
        // SYNC POINT: central free list emptied. Pairs with take: a thread that finds the list empty also sees the count of moves.
        self.len.load(Acquire) > 0
    }

    /// Moves up to `most` entries, newest first, to `to`; returns the latest time of their uses. Calls `says` before another thread can see the new
    /// length.
    pub fn take(&self, most: usize, to: &mut Vec<Entry>, says: impl FnOnce()) -> u64 {
        let mut there = self.lock();
        let left = there.entries.len().saturating_sub(most);
        to.extend(there.entries.get(left..).unwrap_or_default().iter().map(|&idle| Entry { idle, used: None }));
        there.entries.truncate(left);
        says();
        // SYNC POINT: central free list emptied. Pairs with has_some.
        self.len.store(left, Release);
        there.since
    }

    pub fn read(&self) -> Vec<Idle> {
        self.lock().entries.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
