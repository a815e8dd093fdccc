//! An asymmetric barrier: the side that runs rarely pays for both. Source: Dice, Huang and Yang, "Asymmetric Dekker Synchronization" (2001).

/// Orders a thread's earlier stores before its later loads.
pub(crate) trait Barrier {
    /// A compiler fence if the other side can compensate, else a full fence.
    fn often();
    /// Compensates for the frequent side. False if the system call fails.
    fn seldom() -> bool;
}

pub(crate) struct System;

/// A full fence: for a side that a barrier of this process does not reach, such as a device.
pub(crate) struct Full;

impl Barrier for Full {
    #[inline(always)]
    fn often() {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
    fn seldom() -> bool {
        Self::often();
        true
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use core::sync::atomic::Ordering::{Relaxed, SeqCst};
    use core::sync::atomic::{AtomicBool, compiler_fence, fence};
    use std::sync::Once;

    use super::{Barrier, System};

    /// The kernel can run a barrier in all threads (`membarrier`). Decided first: both sides must agree.
    static IS_CHEAP: AtomicBool = AtomicBool::new(false);

    const EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_EXPEDITED: libc::c_int = 1 << 4;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: accesses no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    impl System {
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

    /// Loom has no asymmetric barrier.
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

    /// As if the system lacked a barrier that it claims.
    pub(crate) struct Weakened;
    impl Barrier for Weakened {
        fn often() {}
        fn seldom() -> bool {
            fence(Ordering::SeqCst);
            true
        }
    }
}
