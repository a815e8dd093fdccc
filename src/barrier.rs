//! A barrier whose cost is all on one side: who stores and looks all the time pays nothing, who does so seldom pays for both.
//!
//! Source: Dice, Huang and Yang, "Asymmetric Dekker Synchronization" (2001).

/// What puts a thread's store before its next load, for the eyes of the other side.
pub(crate) trait Barrier {
    /// On the side that goes there often: nothing, or all there is.
    fn often();
    /// On the other side: whatever the first lacks. `false` if that cannot be had now.
    fn seldom() -> bool;
}

/// The barrier of this system.
pub(crate) struct System;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use core::sync::atomic::Ordering::{Relaxed, SeqCst};
    use core::sync::atomic::{AtomicBool, compiler_fence, fence};
    use std::sync::Once;

    use super::{Barrier, System};

    /// The kernel runs barriers in all our threads when one of them asks. Decided once, before either side goes anywhere: both agree.
    static IS_CHEAP: AtomicBool = AtomicBool::new(false);

    const EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_EXPEDITED: libc::c_int = 1 << 4;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: a barrier in the threads of this process; no memory is passed.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    impl System {
        /// Before anything that needs a barrier is there.
        pub fn prepare() {
            static DECIDED: Once = Once::new();
            DECIDED.call_once(|| IS_CHEAP.store(membarrier(REGISTER_EXPEDITED), Relaxed));
        }
    }

    impl Barrier for System {
        #[inline(always)]
        fn often() {
            if IS_CHEAP.load(Relaxed) { compiler_fence(SeqCst) } else { fence(SeqCst) }
        }
        fn seldom() -> bool {
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
        /// Before anything that needs a barrier is there.
        pub fn prepare() {}
    }

    impl Barrier for System {
        fn often() {
            fence(SeqCst);
        }
        fn seldom() -> bool {
            fence(SeqCst);
            true
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use loom::sync::atomic::{Ordering, fence};

    use super::Barrier;

    /// The barriers, as fences on both sides: loom knows no other.
    pub(crate) struct Both;
    impl Barrier for Both {
        fn often() {
            fence(Ordering::SeqCst);
        }
        fn seldom() -> bool {
            fence(Ordering::SeqCst);
            true
        }
    }

    /// The first side's left out, as if the system had a barrier that it has not.
    pub(crate) struct Weakened;
    impl Barrier for Weakened {
        fn often() {}
        fn seldom() -> bool {
            fence(Ordering::SeqCst);
            true
        }
    }
}
