//! The handle count of a pool. While the first handle lives, cloning and dropping a handle writes to no word that another thread writes.
//!
//! 1. Each thread counts clones minus drops in its own [`Share`], in its cache. A thread without a share counts in the common word.
//! 2. The first handle adds a large constant to the common word, so that it cannot reach 0 while shares are open. When the first handle
//!    drops, it closes every share, adds their counts and subtracts the constant. A thread whose share is closed counts in the common word.
//! 3. So the common word reaches 0 once: when no handle is left and no share is open. The thread that makes it 0 drops the pool.
//!
//! The lock of the cache protects the share. Source: Choi, Shull and Torrellas, "Biased Reference Counting" (2018). Here the bias is per
//! thread, not per object.

use ringmem_layouts::RmwWord;

/// The common word, shared by all threads.
pub(super) struct Handles<W>(W);

/// The count of the first handle. Larger than the number of handles that can move between threads, since each such move can subtract 1
/// here.
const FIRST: u64 = 1 << 62;

impl<W: RmwWord> Handles<W> {
    /// Returns the count of a pool that has its first handle.
    pub fn new() -> Self {
        Self(W::new(FIRST))
    }

    /// Adds `more` handles; the sum of a share may be wrapped.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more);
    }

    /// Subtracts a handle. Returns whether it was the last.
    pub fn leave(&self) -> bool {
        // SYNC POINT: handle dropped. Pairs with itself: all actions of other handles happen before the drop of the last one returns true.
        self.0.fetch_add(1_u64.wrapping_neg()) == 1
    }

    /// Subtracts the first handle, and adds the sum `others` of the closed shares. All shares must be closed. Returns whether no handle is
    /// left.
    pub fn first_leaves(&self, others: u64) -> bool {
        let less = FIRST.wrapping_sub(others);
        // SYNC POINT: handle dropped. Pairs with leave.
        self.0.fetch_add(less.wrapping_neg()) == less
    }
}

/// The handle count of one thread.
pub(super) struct Share {
    /// Clones minus drops; wraps, because other threads drop handles that this thread cloned.
    count: u64,
    is_open: bool,
}

impl Share {
    pub const fn new(is_open: bool) -> Self {
        Self { count: 0, is_open }
    }

    /// Adds `more` if the share is open. Returns whether it is.
    #[inline(always)]
    pub fn add(&mut self, more: u64) -> bool {
        if self.is_open {
            self.count = self.count.wrapping_add(more);
        }
        self.is_open
    }

    /// Closes the share and returns its count. The caller adds the count to the common word.
    pub fn close(&mut self) -> u64 {
        self.is_open = false;
        core::mem::take(&mut self.count)
    }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::barrier::tests::Both;
    use crate::loom_machine::{LoomWord, RMW_RELAXED, STRONG};
    use crate::pool::biased_lock::BiasedLock;

    struct Pool<const WEAK: u8> {
        handles: Handles<LoomWord<WEAK>>,
        lock: BiasedLock<LoomWord<STRONG>>,
        revokers: Mutex<()>,
        share: UnsafeCell<Share>,
        /// Written by the thread that drops the pool.
        is_there: UnsafeCell<bool>,
        has_gone: AtomicBool,
    }

    impl<const WEAK: u8> Pool<WEAK> {
        /// A handle uses the pool.
        fn used(&self) {
            // SAFETY: the property under test: no thread drops the pool while another uses it.
            assert!(self.is_there.with(|is_there| unsafe { *is_there }), "it has gone");
        }

        fn goes(&self) {
            // SAFETY: as above.
            self.is_there.with_mut(|is_there| unsafe { *is_there = false });
            assert!(!self.has_gone.swap(true, Ordering::Relaxed), "it goes twice");
        }

        /// Adds to the share, on its thread.
        fn count(&self, more: u64) -> bool {
            while !self.lock.try_lock::<Both>() {
                drop(self.revokers.lock().unwrap());
            }
            // SAFETY: the lock is held.
            let is_counted = self.share.with_mut(|share| unsafe { (*share).add(more) });
            self.lock.unlock();
            is_counted
        }

        fn first_goes(&self) {
            let revoker = self.revokers.lock().unwrap();
            assert!(self.lock.revoke::<Both>(), "there is a barrier");
            while !self.lock.is_unlocked() {
                thread::yield_now();
            }
            // SAFETY: revoked, and the owner does not hold the lock.
            let others = self.share.with_mut(|share| unsafe { (*share).close() });
            self.lock.restore();
            drop(revoker);
            if self.handles.first_leaves(others) {
                self.goes();
            }
        }
    }

    /// A thread with a handle clones it and drops the original, and also the clone unless `is_left`. Meanwhile the first handle drops.
    fn scene<const WEAK: u8>(is_left: bool) {
        loom::model(move || {
            let pool = Arc::new(Pool::<WEAK> {
                handles: Handles::new(),
                lock: BiasedLock::new(),
                revokers: Mutex::new(()),
                share: UnsafeCell::new(Share::new(true)),
                is_there: UnsafeCell::new(true),
                has_gone: AtomicBool::new(false),
            });
            // The thread's handle was cloned by a thread without a share.
            pool.handles.add(1);
            let owner = thread::spawn({
                let pool = Arc::clone(&pool);
                move || {
                    if !pool.count(1) {
                        pool.handles.add(1);
                    }
                    for _ in usize::from(is_left)..2 {
                        pool.used();
                        if !pool.count(1_u64.wrapping_neg()) && pool.handles.leave() {
                            pool.goes();
                        }
                    }
                }
            });
            pool.used();
            pool.first_goes();
            owner.join().unwrap();
            if is_left {
                pool.used();
                assert!(pool.handles.leave(), "nobody has one");
                pool.goes();
            }
            assert!(pool.has_gone.load(Ordering::Relaxed), "it never goes");
        });
    }

    #[test]
    fn a_pool_goes_once_and_after_its_last_handle() {
        scene::<STRONG>(false);
        scene::<STRONG>(true);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_the_order_of_counts_it_goes_while_a_handle_is_there() {
        scene::<RMW_RELAXED>(false);
    }
}
