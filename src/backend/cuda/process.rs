//! In which process the driver may be called: not in a forked child, whose handles are invalid, and not while the process ends.
//!
//! At exit the driver may end before the last value of this crate. A call then returns the driver's usual error instead of crashing or hanging:
//!
//! | process | `HOME` | `IS_ENDING` | result of a call |
//! |---|---|---|---|
//! | before [`Driver::load`](super::Driver::load) | unset | false | the driver's: only `cuInit` is called then |
//! | that loaded the driver | this process | false | the driver's |
//! | whose exit handlers run | this process | true | `CUDA_ERROR_DEINITIALIZED` |
//! | forked after the load | the parent | false | `CUDA_ERROR_NOT_INITIALIZED` |
//!
//! `IS_ENDING` is set by an exit handler that is registered after `cuInit`: handlers run in reverse order of their registration, so it runs before the
//! driver's. In a forked child a lock may be held by a thread that does not exist there. So an operation that takes a lock before its first call checks for a
//! fork itself (`driver::check_not_forked`), and values that are dropped there leave their handles to the parent (`backend.rs`, `queue.rs`, `resources.rs`,
//! `timing.rs`, `memory.rs`).

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::ffi::c_int;
use std::sync::OnceLock;

use crate::sys::fork::Process;

static IS_ENDING: AtomicBool = AtomicBool::new(false);
static HOME: OnceLock<Process> = OnceLock::new();

unsafe extern "C" {
    safe fn atexit(callback: extern "C" fn()) -> c_int;
}

extern "C" fn ending() {
    IS_ENDING.store(true, Relaxed);
}

/// Notes this process, and its end. Called after `cuInit`.
pub(super) fn register() {
    HOME.get_or_init(|| {
        // If this fails, calls at exit get the driver's own error.
        atexit(ending);
        Process::this()
    });
}

pub(super) fn is_ending() -> bool {
    IS_ENDING.load(Relaxed)
}

pub(super) fn is_forked() -> bool {
    HOME.get().is_some_and(|home| !home.is_this())
}
