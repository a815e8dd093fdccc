//! [`Process`]: a fork has a copy of a pool's words, but not the threads that sit at its caches or hold its locks, nor its driver.

/// The process that a pool was made in.
pub(crate) struct Process {
    forks: u64,
}

impl Process {
    /// This one. A fork that is not made by the C library is not noticed, nor is any but on Linux and Android.
    pub fn this() -> Self {
        system::watch();
        Self { forks: system::forks() }
    }

    /// Whether it is still the same.
    #[inline(always)]
    pub fn is_this(&self) -> bool {
        self.forks == system::forks()
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::Relaxed;
    use std::sync::Once;

    use crate::pool::local;

    /// How many forks lie between the first process and this one, since somebody watches. Written while a process has one thread.
    static FORKS: AtomicU64 = AtomicU64::new(0);

    extern "C" fn forked() {
        FORKS.fetch_add(1, Relaxed);
        // What this thread, the only one, finds without asking for the process.
        local::forget();
    }

    pub fn watch() {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the function does what may be done in a child: it writes words. Where the library is out of memory nobody watches.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
    }

    #[inline(always)]
    pub fn forks() -> u64 {
        FORKS.load(Relaxed)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    pub fn watch() {}
    pub fn forks() -> u64 {
        0
    }
}
