//! Failures of driver calls: the N-th call of a symbol does nothing and returns a code, by `ringmem_double_fail` or the variable `RINGMEM_DOUBLE_FAIL`.
//!
//! Symbols are those of the double, as the library loads them: a queued copy is `cuMemcpyHtoDAsync_v2` or one of its siblings in `calls/copy.rs`. The driver's
//! `cuMemcpyAsync` is not among them, nor is the runtime's `cudaMemcpyAsync`; a plan for an unknown symbol is an error, in the variable an abort.
//!
//! 1. A plan, added here, is a list of numbers and codes in the [`Symbol`].
//! 2. Each function of the driver counts its call, in `entry::enter` unless nothing is planned, logged or to wait for. If the plan has the number, `enter`
//!    returns the code, and the function's body does not run: nothing is checked, queued, allocated or freed, and no result is written.
//! 3. Such a failure is of that call alone: the context and its queued work go on. What makes the later calls of a context fail, as on a device, is a kernel
//!    that ends in a fault: one of the PTX machine, a panic of a host build, or threads that the host cannot start (`kernel.rs`).

use std::ffi::{CStr, c_char};

use crate::calls;
use crate::code::Code;
use crate::driver::Driver;
use crate::log::give_up;
use crate::symbol::Symbol;

pub fn plan(text: &str) {
    for entry in text.split(',').filter(|entry| !entry.is_empty()) {
        match planned(entry) {
            Ok((symbol, number, code)) => symbol.fail(number, code),
            Err(why) => give_up(&format!("RINGMEM_DOUBLE_FAIL={text}: {why}")),
        }
    }
}

fn planned(entry: &str) -> Result<(&'static Symbol, u64, Code), String> {
    let parts: Vec<&str> = entry.split(':').collect();
    let [name, number, code] = parts[..] else { return Err(format!("`{entry}` is not SYMBOL:N:CODE")) };
    let symbol = calls::all().find(|symbol| symbol.name == name).ok_or_else(|| format!("no symbol {name}"))?;
    let number = number.parse().ok().filter(|&number| number > 0).ok_or_else(|| format!("`{number}` is no number from 1"))?;
    let code = code.parse().ok().and_then(Code::known).ok_or_else(|| format!("`{code}` is no CUresult with a name here"))?;
    Ok((symbol, number, code))
}

/// # Safety
///
/// `name` is null or a C string.
unsafe fn named(name: *const c_char) -> Option<&'static Symbol> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not null; the caller promises that `name` is a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    calls::all().find(|symbol| symbol.name == name)
}

/// Makes the `number`-th call of a symbol (from 1, since the last [`ringmem_double_reset`]) do nothing and return `code`. Returns 1 for an
/// unknown symbol or code and for number 0, else 0; nothing happens if that call has been made. Plans accumulate.
///
/// # Safety
///
/// `symbol` is null, which is rejected, or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_double_fail(symbol: *const c_char, number: u64, code: u32) -> u32 {
    Driver::the();
    // SAFETY: the caller promises that `symbol` is null or a C string, as `named` requires.
    match (unsafe { named(symbol) }, Code::known(code)) {
        (Some(symbol), Some(code)) if number > 0 => symbol.fail(number, code),
        _ => return Code::INVALID_VALUE.number(),
    }
    Code::SUCCESS.number()
}

/// Returns the calls of a symbol since the last [`ringmem_double_reset`], failed ones included; `u64::MAX` if unknown.
///
/// # Safety
///
/// `symbol` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_double_calls(symbol: *const c_char) -> u64 {
    // SAFETY: the caller promises that `symbol` is null or a C string, as `named` requires.
    unsafe { named(symbol) }.map_or(u64::MAX, Symbol::calls)
}

/// Forgets planned failures and call counts. Live objects and violations stay counted.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_reset() {
    Driver::the();
    calls::all().for_each(Symbol::reset);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_plan_is_an_error() {
        for entry in ["cuMemAlloc:1:2", "cuMemAlloc_v2:0:2", "cuMemAlloc_v2:1:12345", "cuMemAlloc_v2:1", "cuMemAlloc_v2:one:2"] {
            assert!(planned(entry).is_err(), "{entry}");
        }
        assert!(planned("cuMemAlloc_v2:3:2").is_ok_and(|(symbol, number, _)| (symbol.name, number) == ("cuMemAlloc_v2", 3)));
    }
}
