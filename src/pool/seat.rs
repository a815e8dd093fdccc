//! [`Seat`]: who may touch a thread's cache. Its thread pays nothing that the others do not ask for.
//!
//! 1. The owner sits down and stands up with two plain stores. It never waits unless another thread has asked.
//! 2. Another thread asks, makes every running thread's earlier stores visible (a barrier in the other threads, paid by the one that asks), and
//!    waits until the owner is not sitting. Until it says that it is done, the owner waits at its next sitting down.
//!
//! Where the system has no such barrier, the owner pays for one itself. Source: Dice, Huang and Yang, "Asymmetric Dekker Synchronization" (2001).

use ringmem_layouts::Word;

use crate::barrier::Barrier;

/// The two words of it. What one side stores and then loads, the other loads and then stores: a barrier on each side keeps both from seeing the old.
pub(super) struct Seat<W> {
    /// 1 while its owner is at the cache. Owner.
    taken: W,
    /// 1 while another thread wants the cache, or has it. That thread, one at a time.
    asked: W,
}

impl<W: Word> Seat<W> {
    pub fn new() -> Self {
        Self { taken: W::new(0), asked: W::new(0) }
    }

    /// Sits down, unless another thread has asked: whether it did. Owner.
    #[inline(always)]
    pub fn sit<B: Barrier>(&self) -> bool {
        self.taken.store(1);
        B::often();
        // SYNC POINT: cache given back. Pairs with give_back. And seat asked for: the barriers put one side's store before the other's load.
        if self.asked.load_acquire() == 0 {
            return true;
        }
        self.stand();
        false
    }

    /// Stands up. Owner.
    #[inline(always)]
    pub fn stand(&self) {
        // SYNC POINT: seat left. Pairs with is_free.
        self.taken.store_release(0);
    }

    /// Asks for the cache: whether that can be done. Another thread, one at a time.
    pub fn ask<B: Barrier>(&self) -> bool {
        self.asked.store(1);
        let heard = B::seldom();
        if !heard {
            self.give_back();
        }
        heard
    }

    /// Whether the owner is away, and so the cache is the asker's.
    pub fn is_free(&self) -> bool {
        // SYNC POINT: seat left. Pairs with stand.
        self.taken.load_acquire() == 0
    }

    /// Gives the cache back. The other thread.
    pub fn give_back(&self) {
        // SYNC POINT: cache given back. Pairs with sit.
        self.asked.store_release(0);
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
            let shared = loom::sync::Arc::new((Seat::<LoomWord<STRONG>>::new(), loom::cell::UnsafeCell::new(0_u64)));
            let owner = loom::thread::spawn({
                let shared = loom::sync::Arc::clone(&shared);
                move || {
                    for _ in 0..2 {
                        if shared.0.sit::<B>() {
                            // SAFETY: what the scene is about.
                            shared.1.with_mut(|cache| unsafe { *cache += 1 });
                            shared.0.stand();
                        }
                    }
                }
            });
            if shared.0.ask::<B>() {
                if shared.0.is_free() {
                    // SAFETY: as above.
                    shared.1.with_mut(|cache| unsafe { *cache += 1 });
                }
                shared.0.give_back();
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

    /// An owner that takes one after the other, and an asker that takes all there are: who got how many of three.
    fn stealing<B: Barrier>() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((Seat::<LoomWord<STRONG>>::new(), loom::cell::UnsafeCell::new(std::vec![1_u32, 2, 4])));
            let owner = loom::thread::spawn({
                let shared = loom::sync::Arc::clone(&shared);
                move || {
                    let mut taken = 0;
                    for _ in 0..2 {
                        if shared.0.sit::<B>() {
                            // SAFETY: what the scene is about.
                            taken += shared.1.with_mut(|entries| unsafe { (*entries).pop() }).unwrap_or(0);
                            shared.0.stand();
                        }
                    }
                    taken
                }
            });
            let mut stolen = 0;
            if shared.0.ask::<B>() {
                if shared.0.is_free() {
                    // SAFETY: as above.
                    stolen = shared.1.with_mut(|entries| core::mem::take(unsafe { &mut *entries })).into_iter().sum();
                }
                shared.0.give_back();
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
