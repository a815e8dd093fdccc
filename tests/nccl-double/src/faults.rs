//! Planned failures of calls, call counts, and the loss of a rank.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::meeting;

#[derive(Default)]
struct Plan {
    counts: BTreeMap<String, u64>,
    failures: Vec<(String, u64, u32)>,
}

static PLAN: Mutex<Plan> = Mutex::new(Plan { counts: BTreeMap::new(), failures: Vec::new() });

fn plan() -> MutexGuard<'static, Plan> {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn called(symbol: &str) -> Option<u32> {
    let mut plan = plan();
    let count = plan.counts.entry(symbol.to_owned()).or_default();
    *count += 1;
    let count = *count;
    plan.failures.iter().find(|(name, number, _)| name == symbol && *number == count).map(|&(.., code)| code)
}

/// Makes the `number`-th call of a function (from 1, since the last [`ringmem_nccl_reset`]) do nothing and return `code`.
///
/// # Safety
///
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_nccl_fail(symbol: *const c_char, number: u64, code: u32) {
    // SAFETY: caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned();
    plan().failures.push((symbol, number, code));
}

/// Returns the calls of a function since the last [`ringmem_nccl_reset`].
///
/// # Safety
///
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_nccl_calls(symbol: *const c_char) -> u64 {
    // SAFETY: caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    plan().counts.get(&*symbol).copied().unwrap_or(0)
}

/// Forgets planned failures and counts.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_nccl_reset() {
    *plan() = Plan::default();
}

/// Gives every communicator an asynchronous error.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_nccl_lose(code: u32) {
    meeting::lose(code);
}
