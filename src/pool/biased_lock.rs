//! [`BiasedLock`]: the lock of a thread's cache. Its owner executes no fence.
//!
//! 1. The owner locks with a plain store and a load, and unlocks with a plain store.
//! 2. Another thread revokes the bias: it stores its request, runs a barrier in all running threads, and waits until the owner has
//!    unlocked. The owner's next lock waits for the restored bias.
//!
//! Without such a barrier, the owner executes a fence. For the source, see `barrier.rs`.

use ringmem_layouts::Word;

use crate::barrier::Barrier;

/// Each side stores one word, runs a barrier and loads the other: not both load old values.
pub(super) struct BiasedLock<W> {
    /// 1 while the owner, which writes it, has the lock.
    locked: W,
    /// 1 while another thread, which writes it, waits or has the lock.
    revoked: W,
}

impl<W: Word> BiasedLock<W> {
    pub fn new() -> Self {
        Self { locked: W::new(0), revoked: W::new(0) }
    }

    /// Owner only. Fails while the bias is revoked.
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

    /// One thread at a time. False without a system-wide barrier.
    pub fn revoke<B: Barrier>(&self) -> bool {
        self.revoked.store(1);
        let heard = B::seldom();
        if !heard {
            self.restore();
        }
        heard
    }

    /// Returns whether the revoker has the lock.
    pub fn is_unlocked(&self) -> bool {
        // SYNC POINT: lock released. Pairs with unlock.
        self.locked.load_acquire() == 0
    }

    /// Revoker only.
    pub fn restore(&self) {
        // SYNC POINT: bias restored. Pairs with try_lock.
        self.revoked.store_release(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::tests::{Both, Weakened};
    use crate::loom_machine::{LoomWord, STRONG};

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
