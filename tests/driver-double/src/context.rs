//! [`Context`]: the device's primary context, and which threads it is bound to.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code::{Answer, Code};

/// The primary context's handle, in every life of it.
pub const HANDLE: usize = 0xD1A0_C000_0000_0010_u64 as usize;

thread_local! {
    static BOUND: Cell<bool> = const { Cell::new(false) };
}

/// Lives from the first retain to the last release.
#[derive(Default)]
pub struct Context {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    retained: u64,
    /// What a kernel broke: every later call answers it until the context's end.
    fault: Option<Code>,
}

impl Context {
    pub fn retain(&self) -> usize {
        self.state().retained += 1;
        HANDLE
    }

    /// How often it is retained.
    pub fn retained(&self) -> u64 {
        self.state().retained
    }

    /// Whether this was the last.
    pub fn release(&self) -> Answer<bool> {
        let mut state = self.state();
        state.retained = state.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        if state.retained == 0 {
            state.fault = None;
        }
        Ok(state.retained == 0)
    }

    /// Binds it to this thread, or nothing for 0.
    pub fn bind(&self, handle: usize) -> Answer {
        if handle != 0 && (handle != HANDLE || self.retained() == 0) {
            return Err(Code::INVALID_CONTEXT);
        }
        BOUND.set(handle == HANDLE);
        Ok(())
    }

    /// What is bound to this thread.
    pub fn bound() -> usize {
        if BOUND.get() { HANDLE } else { 0 }
    }

    /// Whether this thread may work in it.
    pub fn check(&self) -> Answer {
        let state = self.state();
        match state.fault {
            _ if !BOUND.get() => Err(Code::INVALID_CONTEXT),
            _ if state.retained == 0 => Err(Code::CONTEXT_IS_DESTROYED),
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Breaks it.
    pub fn fail(&self, fault: Code) {
        self.state().fault.get_or_insert(fault);
    }

    pub fn is_broken(&self) -> bool {
        self.state().fault.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
