//! A pool's handle count. While the first handle lives, a thread that has a cache at hand writes to no shared word for the others.
//!
//! 1. Each thread counts clones minus drops in its [`Share`], in its cache; without one, in the common word. A thread that ends adds its share to that word.
//! 2. The first handle adds a large constant to the common word. Its drop closes every share, adds their counts and subtracts the constant. A
//!    thread whose share is closed counts in the common word.
//! 3. So the common word reaches 0 once, with no handle left. The thread that makes it 0 drops the pool. If a share cannot be closed, because the system call
//!    that grants access to another thread's cache fails, or in a forked process, the pool leaks. Shares that were closed before stay closed then, and their
//!    counts are lost. All other handles stay valid, since `FIRST` never leaves the word.
//!
//! Source: Choi, Shull and Torrellas, "Biased Reference Counting" (2018). Here the bias is per thread, not per object.

use ringmem_layouts::RmwWord;

// INVARIANT: while the first handle lives, the word minus `FIRST` plus the counts of all shares is the number of the other handles, modulo 2^64. During that
// handle's drop, counts of closed shares are on its thread's stack. Afterwards all shares are closed, and the word is that number.
pub(super) struct Handles<W>(W);

/// More than the handles that can move between threads, each of which can subtract 1 here.
const FIRST: u64 = 1 << 62;

impl<W: RmwWord> Handles<W> {
    pub fn new() -> Self {
        Self(W::new(FIRST))
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more);
    }

    pub fn leave(&self) -> bool {
        // SYNC POINT: handle dropped. Pairs with itself: all actions of other handles happen before the last drop returns true. A drop that a share counted
        // happens before that share's close, by the cache's lock, and so before the `add` or `first_leaves` after it.
        self.0.fetch_add(1_u64.wrapping_neg()) == 1
    }

    /// Subtracts the first handle and adds the sum of the shares, all closed. Returns whether no handle is left.
    pub fn first_leaves(&self, others: u64) -> bool {
        let less = FIRST.wrapping_sub(others);
        // SYNC POINT: handle dropped. Pairs with leave.
        self.0.fetch_add(less.wrapping_neg()) == less
    }
}

pub(super) struct Share {
    /// Wraps: other threads drop handles that this thread cloned.
    count: u64,
    /// Once false, it stays so, and `count` is 0: a thread that ends and the first handle's drop may both close the share. Later caches begin closed.
    is_open: bool,
}

impl Share {
    pub const fn new(is_open: bool) -> Self {
        Self { count: 0, is_open }
    }

    /// Adds if the share is open; returns whether it is.
    #[inline(always)]
    pub fn add(&mut self, more: u64) -> bool {
        if self.is_open {
            self.count = self.count.wrapping_add(more);
        }
        self.is_open
    }

    /// Returns the count, for the caller to add to the common word. Except in the first handle's drop, it adds the count before another thread can find the
    /// share closed: otherwise that drop could miss a live handle.
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
    use crate::loom_machine::{LoomWord, RMW_RELAXED, STRONG};
    use crate::pool::biased_lock::BiasedLock;
    use crate::sys::barrier::tests::Both;

    struct Pool<const WEAK: u8> {
        handles: Handles<LoomWord<WEAK>>,
        lock: BiasedLock<LoomWord<STRONG>>,
        revokers: Mutex<()>,
        share: UnsafeCell<Share>,
        is_there: UnsafeCell<bool>,
        has_gone: AtomicBool,
    }

    impl<const WEAK: u8> Pool<WEAK> {
        fn used(&self) {
            // SAFETY: the property under test: no thread drops the pool while another uses it.
            assert!(self.is_there.with(|is_there| unsafe { *is_there }), "it has gone");
        }

        fn goes(&self) {
            // SAFETY: the property under test: no thread drops the pool while another uses it.
            self.is_there.with_mut(|is_there| unsafe { *is_there = false });
            assert!(!self.has_gone.swap(true, Ordering::Relaxed), "it goes twice");
        }

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
            // Cloned by a thread without a share.
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
    fn a_pool_is_dropped_once_after_its_last_handle() {
        scene::<STRONG>(false);
        scene::<STRONG>(true);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn relaxed_counts_drop_a_pool_with_a_live_handle() {
        scene::<RMW_RELAXED>(false);
    }
}
