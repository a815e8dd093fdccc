//! Checks that the driver may be called: in its process, until that ends.
//!
//! At exit the driver may end before the last value; in a fork its handles are invalid, and a lock's holder may not exist. Such calls
//! return its usual error instead of crashing or hanging.

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

/// After `cuInit`: exit handlers run in reverse order.
pub(super) fn settle() {
    HOME.get_or_init(|| {
        // On failure, only the driver's error remains.
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
