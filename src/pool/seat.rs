//! [`Seat`]: who may touch a thread's cache. Its thread pays nothing that the others do not ask for.
//!
//! 1. The owner sits down and stands up with two plain stores. It never waits unless another thread has asked.
//! 2. Another thread asks, makes every running thread's earlier stores visible (a barrier in the other threads, paid by the one that asks), and
//!    waits until the owner is not sitting. Until it says that it is done, the owner waits at its next sitting down.
//!
//! Where the system has no such barrier, the owner pays for one itself. Source: Dice, Huang and Yang, "Asymmetric Dekker Synchronization" (2001).

use ringmem_layouts::Word;

/// The two words of it. What one side stores and then loads, the other loads and then stores: a barrier on each side keeps both from seeing the old.
pub(super) struct Seat<W> {
    /// 1 while its owner is at the cache. Owner.
    taken: W,
    /// 1 while another thread wants the cache, or has it. That thread, one at a time.
    asked: W,
}

/// What puts a thread's store before its next load, for the eyes of the other side.
pub(super) trait Barrier {
    /// In the owner, each time: nothing, or all there is.
    fn owner();
    /// In the other thread: whatever the owner's lacks. `false` if that cannot be had now.
    fn other() -> bool;
}

impl<W: Word> Seat<W> {
    pub fn new() -> Self {
        Self { taken: W::new(0), asked: W::new(0) }
    }

    /// Sits down, unless another thread has asked: whether it did. Owner.
    #[inline(always)]
    pub fn sit<B: Barrier>(&self) -> bool {
        self.taken.store(1);
        B::owner();
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
        let heard = B::other();
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

/// The barrier of this system.
pub(super) struct System;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use core::sync::atomic::Ordering::{Relaxed, SeqCst};
    use core::sync::atomic::{AtomicBool, compiler_fence, fence};
    use std::sync::Once;

    use super::{Barrier, System};

    /// The kernel runs barriers in all our threads when one of them asks. Decided once, before there is a seat: owners and askers agree.
    static IS_CHEAP: AtomicBool = AtomicBool::new(false);

    const EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_EXPEDITED: libc::c_int = 1 << 4;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: a barrier in the threads of this process; no memory is passed.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    impl System {
        /// Before the first seat of whoever calls.
        pub fn prepare() {
            static DECIDED: Once = Once::new();
            DECIDED.call_once(|| IS_CHEAP.store(membarrier(REGISTER_EXPEDITED), Relaxed));
        }
    }

    impl Barrier for System {
        #[inline(always)]
        fn owner() {
            if IS_CHEAP.load(Relaxed) { compiler_fence(SeqCst) } else { fence(SeqCst) }
        }
        fn other() -> bool {
            fence(SeqCst);
            !IS_CHEAP.load(Relaxed) || membarrier(EXPEDITED)
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use core::sync::atomic::Ordering::SeqCst;
    use core::sync::atomic::fence;

    use super::{Barrier, System};

    impl System {
        /// Before the first seat of whoever calls.
        pub fn prepare() {}
    }

    impl Barrier for System {
        fn owner() {
            fence(SeqCst);
        }
        fn other() -> bool {
            fence(SeqCst);
            true
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    struct LoomWord(AtomicU64);

    // SAFETY: loom's own atomic, each access with the ordering that its name says.
    unsafe impl Word for LoomWord {
        fn new(value: u64) -> Self {
            Self(AtomicU64::new(value))
        }
        fn load(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn load_acquire(&self) -> u64 {
            self.0.load(Ordering::Acquire)
        }
        fn store(&self, value: u64) {
            self.0.store(value, Ordering::Relaxed);
        }
        fn store_release(&self, value: u64) {
            self.0.store(value, Ordering::Release);
        }
        fn publish_all<const N: usize>(stores: [(&Self, u64); N]) {
            for (word, value) in stores {
                word.store_release(value);
            }
        }
    }

    /// The barriers, as fences on both sides: loom knows no other.
    pub(in crate::pool) struct Both;
    impl Barrier for Both {
        fn owner() {
            fence(Ordering::SeqCst);
        }
        fn other() -> bool {
            fence(Ordering::SeqCst);
            true
        }
    }

    /// The owner's left out, as if the system had a barrier that it has not.
    struct Weakened;
    impl Barrier for Weakened {
        fn owner() {}
        fn other() -> bool {
            fence(Ordering::SeqCst);
            true
        }
    }

    /// Two threads that touch what only one may have: loom's cell notices.
    fn scene<B: Barrier>() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((Seat::<LoomWord>::new(), loom::cell::UnsafeCell::new(0_u64)));
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
            let shared = loom::sync::Arc::new((Seat::<LoomWord>::new(), loom::cell::UnsafeCell::new(std::vec![1_u32, 2, 4])));
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
