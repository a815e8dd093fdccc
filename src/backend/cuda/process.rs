//! Checks that the driver may be called: only in its process, until that begins to end.
//!
//! At exit the driver may end before the last value is dropped; in a fork its handles are invalid, and a lock's holder may not exist. So
//! instead of a call that would crash or hang, its usual error is returned.

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

/// After `cuInit`: exit handlers run in reverse order, so this one runs before the driver's.
pub(super) fn settle() {
    HOME.get_or_init(|| {
        // If registration fails, only the driver's own error remains.
        atexit(ending);
        Process::this()
    });
}

pub(super) fn admits(call: &'static str) -> Result<()> {
    if IS_ENDING.load(Relaxed) {
        return checked(call, number::DEINITIALIZED);
    }
    if !is_home() {
        return checked(call, number::NOT_INITIALIZED);
    }
    Ok(())
}

pub(super) fn takes_locks(call: &'static str) -> Result<()> {
    if is_home() { Ok(()) } else { checked(call, number::NOT_INITIALIZED) }
}

pub(super) fn is_home() -> bool {
    HOME.get().is_none_or(Process::is_this)
}
