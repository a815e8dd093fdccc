//! [`Device`]: one GPU as this backend uses it: its primary context, what it can do, and what is kept ready for calls.
//!
//! 1. The context is the primary one, which the runtime API, cudarc and this share. A call binds it to its thread and puts back what was bound.
//! 2. What is done at once is done on lanes, private streams that wait for no other: nothing here uses the legacy stream.
//! 3. It goes with the backend. Where a kernel still runs then, nothing is given back: each of those calls would wait for it.

use core::ptr;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use cudarc::driver::sys::{CUctx_st, CUdevice, CUstream, CUstream_st};

use super::Settings;
use super::call::{Calls, Handle};
use super::code::{is_final, number};
use super::driver::Driver;
use super::event::Events;
use super::facts::Facts;
use super::pool::Pool;
use super::process;
use super::staging::{Stagings, locked};
use crate::{Error, Result};

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy stream, nor that for it.
const NON_BLOCKING: u32 = 1;

pub(super) struct Device {
    pub calls: &'static Calls,
    pub ordinal: u32,
    pub handle: CUdevice,
    pub facts: Facts,
    pub events: Arc<Events>,
    pub stagings: Arc<Stagings>,
    /// Where device memory comes from; `None` for the driver itself.
    pub pool: Option<Pool>,
    /// Devices whose memory this one was let reach.
    pub peers: Mutex<BTreeSet<u32>>,
    context: Handle<CUctx_st>,
    lanes: Mutex<Vec<Lane>>,
    is_left: AtomicBool,
}

/// A stream for what is done at once, and a word of pinned memory beside it.
pub(super) struct Lane {
    stream: Handle<CUstream_st>,
    /// INVARIANT: 8 pinned bytes that only the holder of the lane and what it has queued there use.
    pub word: NonNull<u64>,
}

// SAFETY: a handle, and memory that whoever has the lane has alone.
unsafe impl Send for Lane {}

impl Device {
    pub fn open(driver: &Driver, ordinal: u32, settings: &Settings) -> Result<Arc<Self>> {
        let calls = driver.calls();
        let handle = driver.device(ordinal)?;
        let facts = Facts::ask(driver, handle)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { calls.cuDevicePrimaryCtxRetain(&raw mut context, handle) }?;
        // From here on its drop releases the context.
        let mut device = Self {
            calls,
            ordinal,
            handle,
            facts,
            events: Arc::new(Events::new(calls)),
            stagings: Arc::new(Stagings::new(calls)),
            pool: None,
            peers: Mutex::default(),
            context: Handle(context),
            lanes: Mutex::default(),
            is_left: AtomicBool::new(false),
        };
        if settings.stream_ordered && device.facts.pools {
            let _bound = device.bind()?;
            device.pool = Pool::new(calls, ordinal, settings.threshold)?;
        }
        Ok(Arc::new(device))
    }

    /// Binds the context to this thread until what is returned goes.
    pub fn bind(&self) -> Result<Bound> {
        let mut before = ptr::null_mut();
        // SAFETY: writes one handle.
        match unsafe { self.calls.cuCtxGetCurrent(&raw mut before) } {
            Err(error) if is_final(&error) => return Err(error),
            // What was bound is not known, and not put back: that is better than not to free what is to be freed.
            Err(_) => before = ptr::null_mut(),
            Ok(()) => {}
        }
        let changed = before != self.context.0;
        if changed {
            // SAFETY: retained for as long as this lives.
            unsafe { self.calls.cuCtxSetCurrent(self.context.0) }?;
        }
        // Where none was bound, this one may stay: it is found there the next time.
        Ok(Bound { calls: self.calls, before: (changed && !before.is_null()).then_some(Handle(before)) })
    }

    pub const fn context(&self) -> Handle<CUctx_st> {
        self.context
    }

    /// A stream that waits for no other. The context is bound.
    pub fn stream(&self) -> Result<Handle<CUstream_st>> {
        let mut stream = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { self.calls.cuStreamCreate(&raw mut stream, NON_BLOCKING) }?;
        Ok(Handle(stream))
    }

    /// Runs calls on a lane and waits until they are over. What fails on the way is waited for too, as far as it was queued.
    pub fn now<T>(&self, run: impl FnOnce(&Lane) -> Result<T>) -> Result<T> {
        let _bound = self.bind()?;
        let idle = self.lanes().pop();
        let lane = match idle {
            Some(lane) => lane,
            None => self.lane()?,
        };
        let outcome = run(&lane);
        // What was queued uses the caller's memory: nobody goes on before it is over, unless all is.
        let over = loop {
            // SAFETY: the lane's own stream.
            match unsafe { self.calls.cuStreamSynchronize(lane.stream()) } {
                Err(error) if !is_final(&error) && !self.is_idle(&lane) => {}
                over => break over,
            }
        };
        self.lanes().push(lane);
        let value = outcome?;
        over.map(|()| value)
    }

    /// Whether a lane has nothing left, or nobody can say.
    fn is_idle(&self, lane: &Lane) -> bool {
        // SAFETY: the lane's own stream.
        !matches!(unsafe { self.calls.cuStreamQuery(lane.stream()) }, Err(Error::Driver { code: number::NOT_READY, .. }))
    }

    fn lane(&self) -> Result<Lane> {
        let word = locked(self.calls, size_of::<u64>(), 0)?.cast();
        match self.stream() {
            Ok(stream) => Ok(Lane { stream, word }),
            Err(error) => {
                // SAFETY: just allocated, and used by nobody. What it says is of less interest than the error.
                let _ = unsafe { self.calls.cuMemFreeHost(word.as_ptr().cast()) };
                Err(error)
            }
        }
    }

    /// Gives nothing back when this goes.
    pub fn leave(&self) {
        self.is_left.store(true, Relaxed);
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    pub const fn stream(&self) -> CUstream {
        self.stream.0
    }
}

impl Drop for Device {
    /// What the driver says here nobody is there to hear: the context goes all the same, and what is in it goes with it.
    fn drop(&mut self) {
        if self.is_left.load(Relaxed) || !process::is_home() {
            return;
        }
        // Where it cannot be bound it may be so already.
        let _bound = self.bind();
        let lanes = std::mem::take(&mut *self.lanes());
        for lane in lanes {
            // SAFETY: an idle lane's stream, which goes with it.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(lane.stream()) };
            // SAFETY: its word, by the invariant.
            let _ = unsafe { self.calls.cuMemFreeHost(lane.word.as_ptr().cast()) };
        }
        self.stagings.give_back();
        self.events.give_back();
        drop(self.pool.take());
        // SAFETY: retained once, by `open`.
        let _ = unsafe { self.calls.cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

/// A context that is bound to this thread for a while.
pub(super) struct Bound {
    calls: &'static Calls,
    before: Option<Handle<CUctx_st>>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: what was current in this thread. If it has gone meanwhile the driver says so, and nobody is worse off.
            let _ = unsafe { self.calls.cuCtxSetCurrent(before.0) };
        }
    }
}
