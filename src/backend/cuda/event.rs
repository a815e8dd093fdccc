//! [`Event`]: a reusable driver event. The context must be bound for every call.

use core::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use cudarc::driver::sys::{CUevent, CUevent_st, CUstream};

use super::call::{Calls, Handle};
use super::code::number;
use super::process;
use crate::{Error, Result};

/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`.
const FLAGS: u32 = 3;

pub(super) struct Events {
    calls: &'static Calls,
    idle: Mutex<Vec<Handle<CUevent_st>>>,
}

pub(super) struct Event {
    handle: Handle<CUevent_st>,
    home: Arc<Events>,
}

impl Events {
    pub const fn new(calls: &'static Calls) -> Self {
        Self { calls, idle: Mutex::new(Vec::new()) }
    }

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

    pub fn take(self: &Arc<Self>) -> Result<Event> {
        let idle = self.idle().pop();
        let handle = idle.map_or_else(|| self.create(), Ok)?;
        Ok(Event { handle, home: Arc::clone(self) })
    }

    pub fn give_back(&self) {
        let idle = std::mem::take(&mut *self.idle());
        for event in idle {
            // SAFETY: unused; else the context's end destroys it.
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

    /// The caller has the only reference.
    pub fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: a live event, and the caller's live stream.
        unsafe { self.home.calls.cuEventRecord(self.handle.0, stream) }
    }

    pub fn is_reached(&self) -> Result<bool> {
        // SAFETY: a live event.
        match unsafe { self.home.calls.cuEventQuery(self.handle.0) } {
            Ok(()) => Ok(true),
            Err(Error::Driver { code: number::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn wait(&self) -> Result<()> {
        // SAFETY: live, recorded again only without other references.
        unsafe { self.home.calls.cuEventSynchronize(self.handle.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if process::is_home() {
            self.home.idle().push(self.handle);
        }
    }
}
