//! What each function of the driver has in common, whatever it does: the macro `calls` exports it, and [`enter`] counts, fails, logs and runs it.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char};
use std::fmt;

use crate::code::{Answer, Code};
use crate::context;
use crate::driver::Driver;
use crate::symbol::Symbol;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Init,
    Context,
}

thread_local! {
    static CURRENT: Cell<(u64, &'static str)> = const { Cell::new((0, "")) };
    static GAVE: RefCell<String> = const { RefCell::new(String::new()) };
}

pub fn current() -> (u64, &'static str) {
    CURRENT.get()
}

pub fn enter(symbol: &'static Symbol, needs: Needs, arguments: &[&dyn fmt::Debug], body: impl FnOnce(&'static Driver) -> Answer) -> u32 {
    let driver = Driver::the();
    let number = driver.record.begin();
    CURRENT.set((number, symbol.name));
    if driver.record.is_on() {
        let _ = GAVE.try_with(|gave| gave.borrow_mut().clear());
    }
    let answer = match symbol.called() {
        Some(code) => Err(code),
        None => driver.admits(needs).and_then(|()| {
            if driver.settings.waits.iter().any(|waits| waits.now(symbol.name)) {
                driver.engine.idle(context::bound(), driver.settings.deadline);
            }
            body(driver)
        }),
    };
    let code = answer.err().unwrap_or(Code::SUCCESS);
    if driver.record.is_on() {
        let gave = GAVE.try_with(|gave| gave.borrow().clone()).unwrap_or_default();
        driver.record.end(number, symbol.name, arguments, code, &gave);
    }
    code.number()
}

/// # Safety
///
/// `place` is null, which is rejected, or valid for a write.
pub unsafe fn give<T: fmt::Debug>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    if Driver::the().record.is_on() {
        let _ = GAVE.try_with(|gave| gave.borrow_mut().push_str(&format!(" {value:#x?}")));
    }
    // SAFETY: the caller promises that `place` is valid for a write unless it is null, which was rejected.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a string, whole or not at all.
///
/// # Safety
///
/// `place` is null, which is rejected, or valid for writes of `len` bytes.
pub unsafe fn give_text(place: *mut c_char, len: i32, text: &CStr) -> Answer {
    let bytes = text.to_bytes_with_nul();
    let len = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
    if place.is_null() || len < bytes.len() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller promises that `place` is valid for writes of `len` bytes unless it is null, which was rejected; the string fits.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// A caller's string.
///
/// INVARIANT: null, or a C string during the call, which the caller of a driver function promises.
#[repr(transparent)]
pub struct Name(*const c_char);

impl Name {
    /// Makes a call's argument.
    #[must_use]
    pub const fn new(text: &'static CStr) -> Self {
        Self(text.as_ptr())
    }

    pub(crate) fn text(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so a C string by the invariant.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::NOT_FOUND)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text().unwrap_or("?"))
    }
}

/// `at_once` work is tried in place of [`enter`], unless a log, a plan or a wait needs that; it returns whether it was complete.
macro_rules! calls {
    ($($needs:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(at_once $quick:block)? |$driver:pat_param| $body:block)+) => {
        #[allow(non_upper_case_globals)]
        mod symbol {
            $(pub static $name: crate::symbol::Symbol = crate::symbol::Symbol::new(stringify!($name));)+
        }
        pub(crate) static SYMBOLS: &[&crate::symbol::Symbol] = &[$(&symbol::$name),+];
        $(
            #[doc = concat!("`", stringify!($name), "` of the driver API. Safety: pointers are valid as its documentation asks.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                $(if symbol::$name.is_plain() && $quick {
                    symbol::$name.count();
                    return 0;
                })?
                let arguments: &[&dyn std::fmt::Debug] = &[$(&$argument),*];
                crate::entry::enter(&symbol::$name, crate::entry::Needs::$needs, arguments, |$driver| $body)
            }
        )+
    };
}
