//! [`BiasedLock`]: the lock of a thread's cache. Its owner executes no fence and no atomic read-modify-write.
//!
//! Each side stores its own word, runs a barrier, and loads the other's word (Dekker's protocol). With a barrier between store and load on both sides,
//! at least one side sees the other's store:
//!
//! | owner | revoker |
//! |---|---|
//! | `locked = 1` | `revoked = 1` |
//! | barrier, a compiler fence only | barrier in all running threads, a system call |
//! | `revoked == 0`? then it has the lock | waits until `locked == 0`, then it has the lock |
//! | else `locked = 0`, and waits for the restored bias | `revoked = 0` at the end: restores the bias |
//! | `locked = 0` at the end | |
//!
//! Both never have the lock at once: if the owner loads `revoked == 0`, its store of `locked` comes first in the order of the barriers, so the revoker
//! loads 1 and waits, or loads the 0 of the unlock after it and sees the owner's accesses. The owner is cheap because the revoker's system call interrupts each
//! running thread of the process, and so orders the owner's store before its load wherever it is between the two. The revoker pays microseconds, at flushes, at
//! reads of statistics, and at the drop of the pool's first handle.
//!
//! If the system lacks such a call, the owner executes a full fence; both sides agree on that, see `barrier.rs`. If the call fails later,
//! [`revoke`](BiasedLock::revoke) restores the bias and returns false: the cache stays out of reach.
//!
//! Only one revoker at a time: its caller holds a mutex, on which the owner waits for the restored bias. The lock has no guards: `Cache::own` and
//! `Cache::ask` unlock and restore by guards, also after a panic.

use ringmem_layouts::Word;

use crate::sys::barrier::Barrier;

pub(super) struct BiasedLock<W> {
    /// 1 while the owner, which writes it, has the lock or tries to take it.
    locked: W,
    /// 1 while another thread, which writes it, waits or has the lock.
    revoked: W,
}

impl<W: Word> BiasedLock<W> {
    pub fn new() -> Self {
        Self { locked: W::new(0), revoked: W::new(0) }
    }

    /// Owner only. Fails while the bias is revoked. An owner that has the lock already is not seen: a nested call returns true, and its
    /// [`unlock`](Self::unlock) ends both.
    #[inline(always)]
    pub fn try_lock<B: Barrier>(&self) -> bool {
        self.locked.store(1);
        B::often();
        // SYNC POINT: bias restored. Pairs with restore. Bias revoked: the barriers order each side's store before its load.
        if self.revoked.load_acquire() == 0 {
            return true;
        }
        self.unlock();
        false
    }

    /// Owner only.
    #[inline(always)]
    pub fn unlock(&self) {
        // SYNC POINT: lock released. Pairs with is_unlocked.
        self.locked.store_release(0);
    }

    /// One thread at a time. False if the system's barrier fails; where the system has none, full fences on both sides suffice. After false the bias is as
    /// before; an owner whose try failed meanwhile waits until the caller releases its mutex.
    pub fn revoke<B: Barrier>(&self) -> bool {
        self.revoked.store(1);
        let has_run = B::seldom();
        if !has_run {
            self.restore();
        }
        has_run
    }

    /// Returns whether the revoker has the lock. Once true, it has the lock until it restores the bias; a later call may still return false, because an owner
    /// that tries in vain sets `locked` to 1 and back to 0.
    pub fn is_unlocked(&self) -> bool {
        // SYNC POINT: lock released. Pairs with unlock.
        self.locked.load_acquire() == 0
    }

    /// Revoker only, once per [`revoke`](Self::revoke) that returned true.
    pub fn restore(&self) {
        // SYNC POINT: bias restored. Pairs with try_lock.
        self.revoked.store_release(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loom_machine::{LoomWord, STRONG};
    use crate::sys::barrier::tests::{Both, Weakened};

    fn scene<B: Barrier>() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((BiasedLock::<LoomWord<STRONG>>::new(), loom::cell::UnsafeCell::new(0_u64)));
            let owner = loom::thread::spawn({
                let shared = loom::sync::Arc::clone(&shared);
                move || {
                    for _ in 0..2 {
                        if shared.0.try_lock::<B>() {
                            // SAFETY: the property under test.
                            shared.1.with_mut(|cache| unsafe { *cache += 1 });
                            shared.0.unlock();
                        }
                    }
                }
            });
            if shared.0.revoke::<B>() {
                if shared.0.is_unlocked() {
                    // SAFETY: the property under test.
                    shared.1.with_mut(|cache| unsafe { *cache += 1 });
                }
                shared.0.restore();
            }
            owner.join().unwrap();
        });
    }

    #[test]
    fn owner_and_revoker_never_access_the_cache_together() {
        scene::<Both>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_the_owner_barrier_both_access_the_cache() {
        scene::<Weakened>();
    }

    fn stealing<B: Barrier>() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((BiasedLock::<LoomWord<STRONG>>::new(), loom::cell::UnsafeCell::new(std::vec![1_u32, 2, 4])));
            let owner = loom::thread::spawn({
                let shared = loom::sync::Arc::clone(&shared);
                move || {
                    let mut taken = 0;
                    for _ in 0..2 {
                        if shared.0.try_lock::<B>() {
                            // SAFETY: the property under test.
                            taken += shared.1.with_mut(|entries| unsafe { (*entries).pop() }).unwrap_or(0);
                            shared.0.unlock();
                        }
                    }
                    taken
                }
            });
            let mut stolen = 0;
            if shared.0.revoke::<B>() {
                if shared.0.is_unlocked() {
                    // SAFETY: the property under test.
                    stolen = shared.1.with_mut(|entries| core::mem::take(unsafe { &mut *entries })).into_iter().sum();
                }
                shared.0.restore();
            }
            let taken = owner.join().unwrap();
            // SAFETY: no other thread is left.
            let left = shared.1.with_mut(|entries| unsafe { (*entries).iter().sum::<u32>() });
            assert_eq!((taken + stolen + left, taken & stolen & left), (7, 0));
        });
    }

    #[test]
    fn each_entry_is_taken_by_owner_or_revoker() {
        stealing::<Both>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_the_owner_barrier_taking_entries_races() {
        stealing::<Weakened>();
    }
}
