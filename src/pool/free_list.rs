//! [`FreeList`]: what threads have too many of, for the next thread that wants its class.
//!
//! A block that one thread takes and another gives back passes here. So each central free list has a lock and lines of its own: those who pass blocks of
//! one class wait for nobody else, and what every thread reads of the pool is not where they write.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::cache::{Entry, Idle};

#[derive(Default)]
#[repr(align(128))]
pub(super) struct FreeList {
    idle: Mutex<Vec<Idle>>,
    /// How many lie there. Written under the lock; who reads it looks there if it says so.
    len: AtomicUsize,
}

impl FreeList {
    /// Adds as many as there is room for beside those that are there, `most` in all; how many.
    pub fn add(&self, most: usize, entries: &[Entry]) -> usize {
        let mut there = self.lock();
        let count = most.saturating_sub(there.len()).min(entries.len());
        there.extend(entries.iter().take(count).map(|entry| entry.idle));
        self.len.store(there.len(), Release);
        count
    }

    /// Whether there may be any.
    pub fn has_some(&self) -> bool {
        // SYNC POINT: central free list emptied. Pairs with take: who finds it empty sees that something moved.
        self.len.load(Acquire) > 0
    }

    /// Moves `most` of them, or as many as there are, the newest; says so before another can look.
    pub fn take(&self, most: usize, to: &mut Vec<Entry>, says: impl FnOnce()) {
        let mut there = self.lock();
        let left = there.len().saturating_sub(most);
        to.extend(there.get(left..).unwrap_or_default().iter().map(|&idle| Entry { idle, used: None }));
        there.truncate(left);
        // Before it is seen to be empty, which is looked at without the lock.
        says();
        // SYNC POINT: central free list emptied. Pairs with has_some.
        self.len.store(left, Release);
    }

    /// All of them, to read.
    pub fn read(&self) -> Vec<Idle> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
