//! Who may call the driver: the process that loaded it, until it begins to end.
//!
//! A driver may be gone before the last of a process's values is dropped, and in a fork none of its handles is valid. A call then crashes in
//! many processes and hangs in others, so none is made: it answers what the driver would. Nor is a lock taken in a fork, whose holder may not be there.

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

/// This process is the driver's. Called when it is initialised: what is registered last is called first, so this sees the end before the driver.
pub(super) fn settle() {
    HOME.get_or_init(|| {
        // Where there is no room for it, the driver's own answer is what is left.
        atexit(ending);
        Process::this()
    });
}

/// Whether a call may reach the driver.
pub(super) fn admits(call: &'static str) -> Result<()> {
    if IS_ENDING.load(Relaxed) {
        return checked(call, number::DEINITIALIZED);
    }
    if !is_home() {
        return checked(call, number::NOT_INITIALIZED);
    }
    Ok(())
}

/// Refuses what takes a lock, in a fork: who holds it may not be there.
pub(super) fn takes_locks(call: &'static str) -> Result<()> {
    if is_home() { Ok(()) } else { checked(call, number::NOT_INITIALIZED) }
}

/// Whether this process is no fork of the driver's.
pub(super) fn is_home() -> bool {
    HOME.get().is_none_or(Process::is_this)
}
