//! [`Event`]: a place in a stream that can be asked for and waited for; used again and again.

use core::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use cudarc::driver::sys::{CUevent, CUevent_st, CUstream};

use super::call::{Calls, Handle};
use super::code::number;
use super::process;
use crate::{Error, Result};

/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: whoever waits sleeps.
const FLAGS: u32 = 3;

/// Events that nobody uses.
pub(super) struct Events {
    calls: &'static Calls,
    idle: Mutex<Vec<Handle<CUevent_st>>>,
}

/// Goes back to the idle ones when nobody waits for it any more.
pub(super) struct Event {
    handle: Handle<CUevent_st>,
    home: Arc<Events>,
}

impl Events {
    pub const fn new(calls: &'static Calls) -> Self {
        Self { calls, idle: Mutex::new(Vec::new()) }
    }

    /// Makes events until so many are idle. The context is bound.
    pub fn stock(&self, wanted: usize) -> Result<()> {
        let missing = wanted.saturating_sub(self.idle().len());
        for _ in 0..missing {
            let event = self.create()?;
            self.idle().push(event);
        }
        Ok(())
    }

    fn create(&self) -> Result<Handle<CUevent_st>> {
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { self.calls.cuEventCreate(&raw mut handle, FLAGS) }?;
        Ok(Handle(handle))
    }

    /// An event that nobody else has. The context is bound.
    pub fn take(self: &Arc<Self>) -> Result<Event> {
        let idle = self.idle().pop();
        let handle = idle.map_or_else(|| self.create(), Ok)?;
        Ok(Event { handle, home: Arc::clone(self) })
    }

    /// Destroys the idle ones.
    pub fn give_back(&self) {
        let idle = std::mem::take(&mut *self.idle());
        for event in idle {
            // SAFETY: nobody uses it. What is not destroyed goes with the context.
            let _ = unsafe { self.calls.cuEventDestroy_v2(event.0) };
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Handle<CUevent_st>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Event {
    pub const fn handle(&self) -> CUevent {
        self.handle.0
    }

    /// Puts it at the end of a stream as that is now. Nobody else has it; the context is bound.
    pub fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: a live event; the stream is the caller's, and live.
        unsafe { self.home.calls.cuEventRecord(self.handle.0, stream) }
    }

    /// Whether it was reached. The context is bound.
    pub fn is_reached(&self) -> Result<bool> {
        // SAFETY: a live event.
        match unsafe { self.home.calls.cuEventQuery(self.handle.0) } {
            Ok(()) => Ok(true),
            Err(Error::Driver { code: number::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until it is reached. The context is bound.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: a live event, which is recorded anew only when nobody has this.
        unsafe { self.home.calls.cuEventSynchronize(self.handle.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // In a fork somebody who is not there may hold the lock.
        if process::is_home() {
            self.home.idle().push(self.handle);
        }
    }
}
