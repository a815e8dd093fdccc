//! [`BiasedLock`]: guards a thread's cache. Its owner executes no fence unless another thread revokes the bias.
//!
//! 1. The owner locks and unlocks with two plain stores. It never waits unless another thread revokes the bias.
//! 2. The other thread stores its request, makes every running thread's earlier stores visible (a barrier in the other threads, paid by the revoker), and
//!    waits until the owner has unlocked. The owner's next lock waits until the bias is restored.
//!
//! Where the system has no such barrier, the owner pays for one itself. Source: Dice, Huang and Yang, "Asymmetric Dekker Synchronization" (2001).

use ringmem_layouts::Word;

use crate::barrier::Barrier;

/// The two words of it. What one side stores and then loads, the other loads and then stores: a barrier on each side keeps both from seeing the old.
pub(super) struct BiasedLock<W> {
    /// 1 while its owner is at the cache. Owner.
    locked: W,
    /// 1 while another thread wants the cache, or has it. That thread, one at a time.
    revoked: W,
}

impl<W: Word> BiasedLock<W> {
    pub fn new() -> Self {
        Self { locked: W::new(0), revoked: W::new(0) }
    }

    /// Locks, unless another thread has revoked the bias. Returns whether it did. Owner.
    #[inline(always)]
    pub fn try_lock<B: Barrier>(&self) -> bool {
        self.locked.store(1);
        B::often();
        // SYNC POINT: bias restored. Pairs with restore. And bias revoked: the barriers put one side's store before the other's load.
        if self.revoked.load_acquire() == 0 {
            return true;
        }
        self.unlock();
        false
    }

    /// Unlocks. Owner.
    #[inline(always)]
    pub fn unlock(&self) {
        // SYNC POINT: lock released. Pairs with is_unlocked.
        self.locked.store_release(0);
    }

    /// Revokes the bias; false without a system-wide barrier. Another thread, one at a time.
    pub fn revoke<B: Barrier>(&self) -> bool {
        self.revoked.store(1);
        let heard = B::seldom();
        if !heard {
            self.restore();
        }
        heard
    }

    /// Returns whether the owner has unlocked, so that the revoker has the cache.
    pub fn is_unlocked(&self) -> bool {
        // SYNC POINT: lock released. Pairs with unlock.
        self.locked.load_acquire() == 0
    }

    /// Restores the bias. The revoker.
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

    /// Two threads that touch what only one may have: loom's cell notices.
    fn scene<B: Barrier>() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((BiasedLock::<LoomWord<STRONG>>::new(), loom::cell::UnsafeCell::new(0_u64)));
            let owner = loom::thread::spawn({
                let shared = loom::sync::Arc::clone(&shared);
                move || {
                    for _ in 0..2 {
                        if shared.0.try_lock::<B>() {
                            // SAFETY: what the scene is about.
                            shared.1.with_mut(|cache| unsafe { *cache += 1 });
                            shared.0.unlock();
                        }
                    }
                }
            });
            if shared.0.revoke::<B>() {
                if shared.0.is_unlocked() {
                    // SAFETY: as above.
                    shared.1.with_mut(|cache| unsafe { *cache += 1 });
                }
                shared.0.restore();
            }
            owner.join().unwrap();
        });
    }

    #[test]
    fn owner_and_asker_are_never_at_the_cache_together() {
        scene::<Both>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_the_owner_s_barrier_they_are() {
        scene::<Weakened>();
    }

    /// An owner that takes one after the other, and an revoker that takes all there are: who got how many of three.
    fn stealing<B: Barrier>() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((BiasedLock::<LoomWord<STRONG>>::new(), loom::cell::UnsafeCell::new(std::vec![1_u32, 2, 4])));
            let owner = loom::thread::spawn({
                let shared = loom::sync::Arc::clone(&shared);
                move || {
                    let mut taken = 0;
                    for _ in 0..2 {
                        if shared.0.try_lock::<B>() {
                            // SAFETY: what the scene is about.
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
                    // SAFETY: as above.
                    stolen = shared.1.with_mut(|entries| core::mem::take(unsafe { &mut *entries })).into_iter().sum();
                }
                shared.0.restore();
            }
            let taken = owner.join().unwrap();
            // SAFETY: nobody else is left.
            let left = shared.1.with_mut(|entries| unsafe { (*entries).iter().sum::<u32>() });
            // Each is a bit: a sum of 7 has each once.
            assert_eq!((taken + stolen + left, taken & stolen & left), (7, 0));
        });
    }

    #[test]
    fn each_entry_goes_to_the_owner_or_to_who_takes_all() {
        stealing::<Both>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_the_owner_s_barrier_an_entry_goes_to_both() {
        stealing::<Weakened>();
    }
}
