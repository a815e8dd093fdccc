//! [`Device`]: one GPU as this backend uses it: its primary context, what it can do, and what is kept ready for calls.
//!
//! 1. The context is the primary one, which the runtime API, cudarc and this share. A call binds it to its thread and puts back what was bound.
//! 2. What is done at once is done on lanes, private streams that wait for no other: nothing here uses the legacy stream. There are [`LANES`], made with
//!    the device; who finds none idle waits for one, and for nothing but what is done at once there.
//! 3. It goes with the backend. Where a kernel still runs then, nothing is given back: each of those calls would wait for it.

use core::ptr;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use cudarc::driver::sys::{CUctx_st, CUdevice, CUstream, CUstream_st};

use super::Settings;
use super::call::{Calls, Handle};
use super::code::{is_final, number};
use super::driver::Driver;
use super::event::Events;
use super::facts::Facts;
use super::pieces::{Piece, Pieces};
use super::pool::Pool;
use super::process;
use super::residents::Residents;
use crate::{Error, Result};

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy stream, nor that for it.
const NON_BLOCKING: u32 = 1;

/// Queries in a row that the driver may fail to answer before a waiter returns its error.
pub(super) const TRIES: u32 = 1000;
/// As many copies at once as a device has engines for, and one to follow each of the two that most have.
const LANES: usize = 4;

/// Bytes of a staging: large enough that the calls for it are not what takes time.
pub(super) const STAGING: usize = 1 << 20;

/// Words that are pinned together: a page.
const WORDS: usize = 512;

pub(super) struct Device {
    pub calls: &'static Calls,
    pub ordinal: u32,
    pub handle: CUdevice,
    pub facts: Facts,
    pub events: Arc<Events>,
    /// Between pageable memory and the device, one of [`STAGING`] bytes for each stream.
    pub stagings: Arc<Pieces>,
    /// Of eight bytes, for what is written with them alone.
    pub words: Arc<Pieces>,
    /// Kernels that stay.
    pub residents: Residents,
    /// Where device memory comes from; `None` for the driver itself.
    pub pool: Option<Pool>,
    /// Devices whose memory this one was let reach.
    pub peers: Mutex<BTreeSet<u32>>,
    context: Handle<CUctx_st>,
    lanes: Mutex<Lanes>,
    /// Somebody has given a lane back.
    freed: Condvar,
    is_left: AtomicBool,
}

#[derive(Default)]
struct Lanes {
    idle: Vec<Lane>,
    /// How many wait for one.
    waiting: usize,
}

/// A stream for what is done at once, and a word of pinned memory beside it.
pub(super) struct Lane {
    stream: Handle<CUstream_st>,
    word: Piece,
}

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
            stagings: Arc::new(Pieces::new(calls, STAGING, 1)),
            words: Arc::new(Pieces::new(calls, size_of::<u64>(), WORDS)),
            residents: Residents::default(),
            pool: None,
            peers: Mutex::default(),
            context: Handle(context),
            lanes: Mutex::default(),
            freed: Condvar::new(),
            is_left: AtomicBool::new(false),
        };
        let bound = device.bind()?;
        if settings.stream_ordered && device.facts.pools {
            device.pool = Some(Pool::new(calls, ordinal, settings.threshold)?);
        }
        for _ in 0..LANES {
            let word = device.words.take()?;
            let stream = device.stream()?;
            device.lanes().idle.push(Lane { stream, word });
        }
        drop(bound);
        Ok(Arc::new(device))
    }

    /// Binds the context to this thread until what is returned goes.
    #[inline]
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
        let lane = self.idle_lane();
        let outcome = run(&lane);
        // What was queued uses the caller's memory: nobody goes on before it is over, unless all is, or nobody can say for long.
        let mut silent = 0;
        let over = loop {
            // SAFETY: the lane's own stream.
            match unsafe { self.calls.cuStreamSynchronize(lane.stream()) } {
                Err(error) if !is_final(&error) && silent < TRIES => match self.is_idle(&lane) {
                    Some(true) => break Err(error),
                    Some(false) => silent = 0,
                    None => silent += 1,
                },
                over => break over,
            }
        };
        let mut lanes = self.lanes();
        lanes.idle.push(lane);
        if lanes.waiting > 0 {
            self.freed.notify_one();
        }
        drop(lanes);
        let value = outcome?;
        over.map(|()| value)
    }

    /// Whether a lane has nothing left, if the driver says so.
    fn is_idle(&self, lane: &Lane) -> Option<bool> {
        // SAFETY: the lane's own stream.
        match unsafe { self.calls.cuStreamQuery(lane.stream()) } {
            Ok(()) => Some(true),
            Err(Error::Driver { code: number::NOT_READY, .. }) => Some(false),
            Err(_) => None,
        }
    }

    /// One that nobody uses, when there is one.
    fn idle_lane(&self) -> Lane {
        let mut lanes = self.lanes();
        loop {
            if let Some(lane) = lanes.idle.pop() {
                return lane;
            }
            lanes.waiting += 1;
            lanes = self.freed.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            lanes.waiting -= 1;
        }
    }

    /// Gives nothing back when this goes.
    pub fn leave(&self) {
        self.is_left.store(true, Relaxed);
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    pub const fn stream(&self) -> CUstream {
        self.stream.0
    }

    /// 8 pinned bytes that only the holder of the lane and what it has queued there use.
    pub const fn word(&self) -> NonNull<u64> {
        self.word.place().cast()
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
        for lane in lanes.idle {
            // SAFETY: an idle lane's stream, which goes with it.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(lane.stream()) };
        }
        self.stagings.give_back();
        self.words.give_back();
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
