//! Functions of `cuLaunchHostFunc`: calls of the driver within one are seen.

use std::cell::Cell;
use std::ffi::c_void;

use crate::engine::Engine;

const NAME: &str = "a host function";

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// INVARIANT: callable with `data` on another thread, as the caller promised over the ABI.
pub struct HostFunction {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: *mut c_void,
}

// SAFETY: by the invariant the function may be called with `data` on another thread.
unsafe impl Send for HostFunction {}

impl HostFunction {
    pub fn call(self, engine: &Engine) {
        engine.runs(NAME);
        INSIDE.set(true);
        // SAFETY: by the invariant the function may be called with `data` on this thread; it is called once.
        unsafe { (self.function)(self.data) };
        INSIDE.set(false);
        engine.left(NAME);
    }
}

pub fn is_inside() -> bool {
    INSIDE.get()
}
