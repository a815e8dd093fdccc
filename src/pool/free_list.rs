//! [`FreeList`]: a central free list per size class, for the surplus blocks of threads.
//!
//! A block that one thread allocates and another frees passes through here. Each list has its own lock and its own cache lines. So traffic
//! of one class does not delay other classes, and does not write to lines that every thread reads.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::cache::{Entry, Idle};

#[derive(Default)]
#[repr(align(128))]
pub(super) struct FreeList {
    idle: Mutex<Vec<Idle>>,
    /// The number of entries. Written under the lock; readers use it as a hint without the lock.
    len: AtomicUsize,
}

impl FreeList {
    /// Adds entries up to a length of `most`, and returns how many it added.
    pub fn add(&self, most: usize, entries: &[Entry]) -> usize {
        let mut there = self.lock();
        let count = most.saturating_sub(there.len()).min(entries.len());
        there.extend(entries.iter().take(count).map(|entry| entry.idle));
        self.len.store(there.len(), Release);
        count
    }

    /// Returns whether the list may have entries.
    pub fn has_some(&self) -> bool {
        // SYNC POINT: central free list emptied. Pairs with take: a thread that finds the list empty also sees the count of moves.
        self.len.load(Acquire) > 0
    }

    /// Moves up to `most` entries, the newest, to `to`. Calls `says` before another thread can see the new length.
    pub fn take(&self, most: usize, to: &mut Vec<Entry>, says: impl FnOnce()) {
        let mut there = self.lock();
        let left = there.len().saturating_sub(most);
        to.extend(there.get(left..).unwrap_or_default().iter().map(|&idle| Entry { idle, used: None }));
        there.truncate(left);
        // Before the store of `len`, which other threads read without the lock.
        says();
        // SYNC POINT: central free list emptied. Pairs with has_some.
        self.len.store(left, Release);
    }

    /// Returns a copy of all entries.
    pub fn read(&self) -> Vec<Idle> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
