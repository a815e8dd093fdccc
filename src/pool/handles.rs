//! How many handles a pool has. Who makes or drops one writes to no word that another thread writes to, as long as the first handle lives.
//!
//! 1. Each thread counts what it makes less what it drops, in a cache that is its own ([`Share`]). One that has none counts in the common word.
//! 2. The first handle is many in the common word, so that it never says 0 while shares are counted. When it goes, every share is closed and
//!    added, and then the many are taken off. A thread whose share is closed counts in the common word.
//! 3. So the common word says 0 once: when no handle is left and no share is open. Who makes it say so lets go of the pool.
//!
//! A share is touched as the cache that it is in is. Source: Choi, Shull and Torrellas, "Biased Reference Counting" (2018), with the bias of a
//! thread's own count instead of an object's owner.

use ringmem_layouts::RmwWord;

/// The common word. Every thread.
pub(super) struct Handles<W>(W);

/// As what the first handle counts: more than handles can pass from thread to thread, each of which takes one off here and has it on there.
const FIRST: u64 = 1 << 62;

impl<W: RmwWord> Handles<W> {
    /// Those of a pool that has its first.
    pub fn new() -> Self {
        Self(W::new(FIRST))
    }

    /// Counts `more` of them; a share's may wrap.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more);
    }

    /// Counts one less: whether it was the last.
    pub fn leave(&self) -> bool {
        // SYNC POINT: handle dropped. Pairs with itself: what was done by every other handle happens before the last is known to be.
        self.0.fetch_add(1_u64.wrapping_neg()) == 1
    }

    /// The first goes, and shares that had counted `others` are closed, as is every other: whether it was the last.
    pub fn first_leaves(&self, others: u64) -> bool {
        let less = FIRST.wrapping_sub(others);
        // SYNC POINT: handle dropped. Pairs with leave.
        self.0.fetch_add(less.wrapping_neg()) == less
    }
}

/// What one thread has counted.
pub(super) struct Share {
    /// Made less dropped, and wraps: others drop what this thread makes.
    count: u64,
    is_open: bool,
}

impl Share {
    pub const fn new(is_open: bool) -> Self {
        Self { count: 0, is_open }
    }

    /// Counts here, if it is open: whether it was.
    #[inline(always)]
    pub fn add(&mut self, more: u64) -> bool {
        if self.is_open {
            self.count = self.count.wrapping_add(more);
        }
        self.is_open
    }

    /// Closes it; what it had counted, which counts in the common word from then on.
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
        /// Written by who lets go of it.
        is_there: UnsafeCell<bool>,
        has_gone: AtomicBool,
    }

    impl<const WEAK: u8> Pool<WEAK> {
        /// A handle does something.
        fn used(&self) {
            // SAFETY: what the scene is about: nobody lets go of what somebody uses.
            assert!(self.is_there.with(|is_there| unsafe { *is_there }), "it has gone");
        }

        fn goes(&self) {
            // SAFETY: as above.
            self.is_there.with_mut(|is_there| unsafe { *is_there = false });
            assert!(!self.has_gone.swap(true, Ordering::Relaxed), "it goes twice");
        }

        /// Of the thread whose share it is.
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

    /// A thread with a handle makes another and drops the one, and the other too unless it is left to be dropped elsewhere; meanwhile the
    /// first goes.
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
            // The thread's handle was made by one that has no share.
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
