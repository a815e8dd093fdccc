//! [`Device`]: one GPU, its primary context and reused resources.
//!
//! 1. The context is shared with the runtime API and cudarc: a call binds it, then restores the previous one.
//! 2. Blocking operations run on internal streams ([`Lane`]). Callers get streams from a stock of [`STREAMS`]: creating more may wait for a
//!    running kernel.
//! 3. If a kernel still runs at the drop, resources are leaked: freeing them would wait.

use core::ptr;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use cudarc::driver::sys::{CUctx_st, CUdevice, CUstream, CUstream_st};

use super::Settings;
use super::call::{Calls, Handle};
use super::code::{is_final, number};
use super::driver::Driver;
use super::driver_pool::DriverPool;
use super::event::Events;
use super::facts::Facts;
use super::occupancy::Occupancy;
use super::pinned_chunks::{PinnedChunk, PinnedChunks};
use super::process;
use super::staged::Stager;
use crate::{Error, Result};

const NON_BLOCKING: u32 = 1;

/// Failed queries in a row before the driver's error is returned.
pub(super) const TRIES: u32 = 1000;
/// Two per copy engine, of which a device usually has two.
const LANES: usize = 4;

/// One per copy engine.
const STAGERS: usize = 2;

/// With the lanes and the stagers, as many as `CUDA_DEVICE_MAX_CONNECTIONS` allows: a kernel never occupies another stream's hardware queue.
const STREAMS: usize = 26;

/// The copy takes longer than its calls.
pub(super) const STAGING: usize = 1 << 20;

const WORDS: usize = 512;

pub(super) struct Device {
    pub calls: &'static Calls,
    pub ordinal: u32,
    pub handle: CUdevice,
    pub facts: Facts,
    pub events: Arc<Events>,
    pub stagings: Arc<PinnedChunks>,
    pub words: Arc<PinnedChunks>,
    pub occupancy: Occupancy,
    /// Most local bytes per thread of any launched kernel, which the driver keeps.
    pub local: AtomicU32,
    /// `None` if the driver allocates each block.
    pub pool: Option<DriverPool>,
    pub peers: Mutex<BTreeSet<u32>>,
    context: Handle<CUctx_st>,
    streams: Mutex<Vec<Handle<CUstream_st>>>,
    lanes: Mutex<Lanes>,
    stagers: Mutex<Vec<Arc<Stager>>>,
    freed: Condvar,
    is_left: AtomicBool,
}

#[derive(Default)]
struct Lanes {
    idle: Vec<Lane>,
    waiting: usize,
}

pub(super) struct Lane {
    stream: Handle<CUstream_st>,
    word: PinnedChunk,
}

impl Device {
    pub fn open(driver: &Driver, ordinal: u32, settings: &Settings) -> Result<Arc<Self>> {
        let calls = driver.calls();
        let handle = driver.device(ordinal)?;
        let facts = Facts::ask(driver, handle)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { calls.cuDevicePrimaryCtxRetain(&raw mut context, handle) }?;
        let mut device = Self {
            calls,
            ordinal,
            handle,
            facts,
            events: Arc::new(Events::new(calls)),
            stagings: Arc::new(PinnedChunks::new(calls, STAGING, STAGERS + STREAMS)),
            words: Arc::new(PinnedChunks::new(calls, size_of::<u64>(), WORDS)),
            occupancy: Occupancy::default(),
            local: AtomicU32::new(0),
            pool: None,
            peers: Mutex::default(),
            context: Handle(context),
            streams: Mutex::default(),
            lanes: Mutex::default(),
            stagers: Mutex::default(),
            freed: Condvar::new(),
            is_left: AtomicBool::new(false),
        };
        let bound = device.bind()?;
        if settings.stream_ordered && device.facts.pools {
            device.pool = Some(DriverPool::new(calls, ordinal, settings.threshold)?);
        }
        for _ in 0..LANES {
            let word = device.words.take()?;
            let stream = device.stream()?;
            device.lanes().idle.push(Lane { stream, word });
        }
        for _ in 0..STAGERS {
            let stager = Stager::new(&device)?;
            device.stagers().push(Arc::new(stager));
        }
        for _ in 0..STREAMS {
            let stream = device.stream()?;
            device.streams().push(stream);
        }
        drop(bound);
        device.preload();
        Ok(Arc::new(device))
    }

    #[inline]
    pub fn bind(&self) -> Result<Bound> {
        let mut before = ptr::null_mut();
        // SAFETY: writes one handle.
        match unsafe { self.calls.cuCtxGetCurrent(&raw mut before) } {
            Err(error) if is_final(&error) => return Err(error),
            // Not restored then; failing would prevent frees.
            Err(_) => before = ptr::null_mut(),
            Ok(()) => {}
        }
        let changed = before != self.context.0;
        if changed {
            // SAFETY: retained for the lifetime of `self`.
            unsafe { self.calls.cuCtxSetCurrent(self.context.0) }?;
        }
        // Without an earlier context, this one stays bound for the next call.
        Ok(Bound { calls: self.calls, before: (changed && !before.is_null()).then_some(Handle(before)) })
    }

    pub const fn context(&self) -> Handle<CUctx_st> {
        self.context
    }

    /// The context must be bound.
    pub fn take_stream(&self) -> Result<Handle<CUstream_st>> {
        let idle = self.streams().pop();
        idle.map_or_else(|| self.stream(), Ok)
    }

    /// Without pending work.
    pub fn return_stream(&self, stream: Handle<CUstream_st>) {
        self.streams().push(stream);
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Handle<CUstream_st>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn idle_stager(&self) -> Option<Arc<Stager>> {
        self.stagers().iter().find(|stager| Arc::strong_count(stager) == 1).cloned()
    }

    fn stagers(&self) -> MutexGuard<'_, Vec<Arc<Stager>>> {
        self.stagers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context must be bound.
    pub fn stream(&self) -> Result<Handle<CUstream_st>> {
        let mut stream = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { self.calls.cuStreamCreate(&raw mut stream, NON_BLOCKING) }?;
        Ok(Handle(stream))
    }

    /// Runs calls on a lane and waits for them, even if one fails.
    pub fn now<T>(&self, run: impl FnOnce(&Lane) -> Result<T>) -> Result<T> {
        let _bound = self.bind()?;
        let lane = self.idle_lane();
        let outcome = run(&lane);
        // The calls use the caller's memory: returns only after completion, a broken context, or `TRIES` failed answers.
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

    fn is_idle(&self, lane: &Lane) -> Option<bool> {
        // SAFETY: the lane's own stream.
        match unsafe { self.calls.cuStreamQuery(lane.stream()) } {
            Ok(()) => Some(true),
            Err(Error::Driver { code: number::NOT_READY, .. }) => Some(false),
            Err(_) => None,
        }
    }

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

    /// Exclusive to the lane's holder and its operations.
    pub const fn word(&self) -> NonNull<u64> {
        self.word.place().cast()
    }
}

impl Drop for Device {
    /// Releasing the context frees everything: driver errors are ignored.
    fn drop(&mut self) {
        if self.is_left.load(Relaxed) || !process::is_home() {
            // Its own drop would destroy it, which may wait for the kernel.
            core::mem::forget(self.pool.take());
            return;
        }
        let _bound = self.bind();
        let lanes = std::mem::take(&mut *self.lanes());
        for lane in lanes.idle {
            // SAFETY: of an idle lane, dropped with it.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(lane.stream()) };
        }
        for stream in std::mem::take(&mut *self.streams()) {
            // SAFETY: no queue uses it.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(stream.0) };
        }
        for stager in std::mem::take(&mut *self.stagers()) {
            // SAFETY: no copy uses it.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(stager.stream()) };
        }
        self.stagings.give_back();
        self.words.give_back();
        self.events.destroy();
        drop(self.pool.take());
        // SAFETY: retained once, by `open`.
        let _ = unsafe { self.calls.cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

pub(super) struct Bound {
    calls: &'static Calls,
    before: Option<Handle<CUctx_st>>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: was current here. The driver refuses a destroyed one.
            let _ = unsafe { self.calls.cuCtxSetCurrent(before.0) };
        }
    }
}
