//! Checks that the driver may be called: only in the process that loaded it, until that process begins to end.
//!
//! At exit the driver may end before the last value is dropped; in a fork all its handles are invalid. A call would crash or hang, so the
//! driver's usual error code is returned instead. In a fork no lock is taken either: its holder may not exist.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::ffi::c_int;
use std::sync::OnceLock;

use super::code::{checked, number};
use crate::Result;
use crate::fork::Process;

static IS_ENDING: AtomicBool = AtomicBool::new(false);
static HOME: OnceLock<Process> = OnceLock::new();

unsafe extern "C" {
    safe fn atexit(callback: extern "C" fn()) -> c_int;
}

extern "C" fn ending() {
    IS_ENDING.store(true, Relaxed);
}

/// Called after `cuInit`: exit handlers run in reverse order, so this one runs before the driver's.
pub(super) fn settle() {
    HOME.get_or_init(|| {
        // If registration fails, only the driver's own error remains.
        atexit(ending);
        Process::this()
    });
}

/// Fails if a call must not reach the driver.
pub(super) fn admits(call: &'static str) -> Result<()> {
    if IS_ENDING.load(Relaxed) {
        return checked(call, number::DEINITIALIZED);
    }
    if !is_home() {
        return checked(call, number::NOT_INITIALIZED);
    }
    Ok(())
}

/// Fails in a fork, where the holder of a lock may not exist.
pub(super) fn takes_locks(call: &'static str) -> Result<()> {
    if is_home() { Ok(()) } else { checked(call, number::NOT_INITIALIZED) }
}

/// Returns false in a fork of the driver's process.
pub(super) fn is_home() -> bool {
    HOME.get().is_none_or(Process::is_this)
}
