//! [`Process`]: fork detection. A forked child has neither the driver nor the threads that held locks.
//!
//! A value that belongs to a process keeps a [`Process`] and asks it where it matters. What the child's copy then does:
//!
//! | value | in the child | where |
//! |---|---|---|
//! | CUDA backend | calls return `CUDA_ERROR_NOT_INITIALIZED`; drops leave handles to the parent | `backend/cuda/process.rs` |
//! | host backend | frees nothing, drops no kept value | `backend/host/backend.rs` |
//! | pool | rejects requests, ignores frees; the table of recent caches is cleared | `pool/allocation.rs`, `pool/cache.rs` |
//! | manager | rejects requests, keeps values | `manager/mod.rs` |
//! | channel | calls fail or do nothing, and a drop leaves the kernel running | `channel/mod.rs`, `channel/kernel.rs` |
//! | bridge, its ends and its pump | drops change nothing; the ends must not be used: their ring need not be mapped | `bridge/host_ring.rs`, `bridge/pump.rs` |
//! | pinned and managed memory of a driver | not mapped: a slice of it must not be used | - |
//! | end of a ring between processes | works, and its first drop in either process closes the end | `shared/mod.rs` |

/// The process in which a value was created.
pub struct Process {
    forks: u64,
}

impl Process {
    /// Returns this process. Forks are detected on Linux and Android only.
    #[must_use]
    pub fn this() -> Self {
        system::watch();
        Self { forks: system::forks() }
    }

    /// Returns false in a forked child.
    #[must_use]
    #[inline(always)]
    pub fn is_this(&self) -> bool {
        self.forks == system::forks()
    }
}

/// Runs `handler` in each later fork, where detected.
///
/// # Safety
///
/// The handler only stores words: the child of a multithreaded process may do no more.
pub(crate) unsafe fn in_child(handler: extern "C" fn()) {
    // SAFETY: the caller promises that the handler only stores words, as `system::in_child` requires.
    unsafe { system::in_child(handler) };
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::Relaxed;
    use std::sync::Once;

    /// Since the first `watch`. Written while only one thread exists.
    static FORKS: AtomicU64 = AtomicU64::new(0);

    extern "C" fn forked() {
        FORKS.fetch_add(1, Relaxed);
    }

    pub fn watch() {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the handler only stores a word.
            unsafe { in_child(forked) };
        });
    }

    /// # Safety
    ///
    /// As [`super::in_child`].
    pub unsafe fn in_child(handler: extern "C" fn()) {
        // SAFETY: the caller promises that the handler only stores words, which a forked child may do. A failure leaves forks undetected.
        unsafe { libc::pthread_atfork(None, None, Some(handler)) };
    }

    #[inline(always)]
    pub fn forks() -> u64 {
        FORKS.load(Relaxed)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    pub fn watch() {}
    pub unsafe fn in_child(_: extern "C" fn()) {}
    pub fn forks() -> u64 {
        0
    }
}
