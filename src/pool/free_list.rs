//! [`FreeList`]: a size class's central free list, for threads' surplus blocks.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::cache::{Entry, Idle};

#[derive(Default)]
#[repr(align(128))]
pub(super) struct FreeList {
    idle: Mutex<Vec<Idle>>,
    len: AtomicUsize,
}

impl FreeList {
    pub fn add(&self, most: usize, entries: &[Entry]) -> usize {
        let mut there = self.lock();
        let count = most.saturating_sub(there.len()).min(entries.len());
        there.extend(entries.iter().take(count).map(|entry| entry.idle));
        self.len.store(there.len(), Release);
        count
    }

    pub fn has_some(&self) -> bool {
        // SYNC POINT: central free list emptied. Pairs with take: a thread that finds the list empty also sees the count of moves.
        self.len.load(Acquire) > 0
    }

    /// Moves up to `most` entries, newest first, to `to`. Calls `says` before another thread can see the new length.
    pub fn take(&self, most: usize, to: &mut Vec<Entry>, says: impl FnOnce()) {
        let mut there = self.lock();
        let left = there.len().saturating_sub(most);
        to.extend(there.get(left..).unwrap_or_default().iter().map(|&idle| Entry { idle, used: None }));
        there.truncate(left);
        says();
        // SYNC POINT: central free list emptied. Pairs with has_some.
        self.len.store(left, Release);
    }

    pub fn read(&self) -> Vec<Idle> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
