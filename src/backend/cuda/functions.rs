//! Host functions of queued operations: [`Functions`].
//!
//! 1. An operation's functions access the caller's memory only until the operation is complete, even if the context breaks meanwhile.
//! 2. After a failed call of an operation, its functions do nothing.

use core::ffi::c_void;
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUstream;

use super::Shared;
use super::copy::drain;
use super::queue::Making;
use crate::Result;

#[derive(Default)]
pub(super) struct Functions {
    is_stopped: Mutex<bool>,
}

impl Functions {
    fn run(&self, job: impl FnOnce()) {
        let is_stopped = self.is_stopped();
        if !*is_stopped {
            job();
        }
    }

    /// Waits for a running function.
    pub fn stop(&self) {
        *self.is_stopped() = true;
    }

    fn is_stopped(&self) -> MutexGuard<'_, bool> {
        self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(super) fn host(&self, making: &mut Making<'_>, on: CUstream, job: impl FnOnce() + Send + 'static) -> Result<()> {
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: the data of this function, taken once.
            let job = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
            job();
            drain();
        }
        let functions = Arc::clone(making.functions());
        let job = move || functions.run(job);
        let data = Box::into_raw(Box::new(Box::new(job) as Box<dyn FnOnce() + Send>));
        // SAFETY: the function takes its data once, or never in a broken context, which leaks it.
        let queued = making.call(|_| unsafe { self.calls().cuLaunchHostFunc(on, run, data.cast()) });
        if queued.is_err() {
            // SAFETY: not queued, so the data is not taken.
            drop(unsafe { Box::from_raw(data) });
        }
        queued
    }
}
