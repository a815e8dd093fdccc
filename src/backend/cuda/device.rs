//! [`Device`]: one GPU, its primary context, its facts and peers, and the resources that its operations reuse.
//!
//! 1. The context is shared with the runtime API and cudarc: a call binds it ([`Device::bind`]), then restores the previous one.
//! 2. Blocking operations run on internal streams ([`InternalStream`]). Callers get streams from a stock of [`STREAMS`]: creating more may wait for
//!    a running kernel.
//! 3. If a kernel still runs at the drop, resources are leaked: freeing them would wait.
//!
//! # Resources
//!
//! Creating a stream, page-locking memory and the first use of a driver's kernel may wait for a running kernel. So [`Device::open`] does all of it, before this
//! backend can launch one.
//!
//! | field | an entry is held by | invariant |
//! |---|---|---|
//! | `internal_streams` | one call of [`Device::run_and_wait`] | an idle one has no pending work, unless the driver did not answer or the context is broken |
//! | `streams` | one open queue | a queue returns its stream without pending work |
//! | `stagers` | one queued copy | idle while the list has the only reference |
//! | `stagings`, `words`, `events` | one queue, operation, internal stream or stager | an entry returns when it is dropped |
//! | `peers` | - | the devices whose memory this one may access; its lock is held while the driver's state changes too |
//! | `local_bytes` | - | the largest local memory per thread of any launched kernel; the driver keeps that much allocated |
//!
//! # Order of steps
//!
//! [`Device::open`] retains the context, then creates pool, internal streams, stagers and streams in it, then uses each of the driver's lazily loaded kernels
//! once. A failure drops the device, and the drop releases in reverse: streams first, then the memory and events that they use, then the pool, then the
//! context. [`Device::run_and_wait`] returns only after its calls are complete, since they use the caller's memory, even if one of them failed.

use core::cell::Cell;
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::vec::Vec;

use cudarc::driver::sys::{CUctx_st, CUdevice, CUdeviceptr, CUstream, CUstream_st};
use ringmem_layouts::ring::mpmc::SystemAtomics;

use super::driver::{Calls, Driver, Handle, attribute, code, is_final, is_of_no_stream};
use super::occupancy::Occupancy;
use super::process;
use super::resources::{DriverPool, Events, NO_ACCESS, PinnedChunk, PinnedChunks, READ_WRITE, Stager};
use super::{CudaBackend, Inner, Settings};
use crate::backend::{Capabilities, fill};
use crate::trace::event;
use crate::{Error, Result};

const NON_BLOCKING: u32 = 1;

/// Failed queries in a row before a wait returns the driver's error, if the memory lists the operation, or sleeps between further ones.
pub(super) const TRIES: u32 = 1000;
/// Two for each copy engine, of which a device usually has two.
const INTERNAL_STREAMS: usize = 4;

/// One for each copy engine.
const STAGERS: usize = 2;

/// With the internal streams and the stagers, as many as `CUDA_DEVICE_MAX_CONNECTIONS` allows: a kernel never occupies another stream's hardware queue.
const STREAMS: usize = 26;

/// Bytes of a part of a staged copy: large enough that the copy takes longer than its calls.
pub(super) const STAGING: usize = 1 << 20;

/// Pinned words that are allocated together. Each is the first of 16 bytes, which the seed of a fill takes.
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
    /// The largest local memory per thread of any launched kernel.
    pub local_bytes: AtomicU32,
    /// `None` if the driver allocates each block.
    pub pool: Option<DriverPool>,
    /// Held while a part of an address range of this device is mapped and listed, and while a peer's access to the listed parts changes.
    pub mapping: Mutex<()>,
    peers: Mutex<BTreeSet<u32>>,
    context: Handle<CUctx_st>,
    streams: Mutex<Vec<Handle<CUstream_st>>>,
    internal_streams: Mutex<InternalStreams>,
    stagers: Mutex<Vec<Arc<Stager>>>,
    freed: Condvar,
    is_leaked: AtomicBool,
}

#[derive(Default)]
struct InternalStreams {
    idle: Vec<InternalStream>,
    /// Threads that wait for one.
    waiting: usize,
}

pub(super) struct InternalStream {
    stream: Handle<CUstream_st>,
    word: PinnedChunk,
}

impl Device {
    pub fn open(driver: &Driver, ordinal: u32, settings: &Settings) -> Result<Arc<Self>> {
        let calls = driver.calls();
        let handle = driver.device(ordinal)?;
        let facts = Facts::query(driver, handle, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: the call writes one handle, to a local variable.
        unsafe { calls.cuDevicePrimaryCtxRetain(&raw mut context, handle) }?;
        let mut device = Self {
            calls,
            ordinal,
            handle,
            facts,
            events: Arc::new(Events::new(calls)),
            stagings: Arc::new(PinnedChunks::new(calls, STAGING, STAGERS + STREAMS)),
            words: Arc::new(PinnedChunks::new(calls, fill::MOST, WORDS)),
            occupancy: Occupancy::default(),
            local_bytes: AtomicU32::new(0),
            pool: None,
            mapping: Mutex::default(),
            peers: Mutex::default(),
            context: Handle(context),
            streams: Mutex::default(),
            internal_streams: Mutex::default(),
            stagers: Mutex::default(),
            freed: Condvar::new(),
            is_leaked: AtomicBool::new(false),
        };
        let bound = device.bind()?;
        if settings.stream_ordered && device.facts.pools {
            device.pool = Some(DriverPool::new(calls, ordinal, settings.threshold)?);
        }
        for _ in 0..INTERNAL_STREAMS {
            let word = device.words.take()?;
            let stream = device.create_stream()?;
            device.internal_streams().idle.push(InternalStream { stream, word });
        }
        for _ in 0..STAGERS {
            let stager = Stager::new(&device.events, &device.stagings, || device.create_stream())?;
            device.stagers().push(Arc::new(stager));
        }
        for _ in 0..STREAMS {
            let stream = device.create_stream()?;
            device.streams().push(stream);
        }
        drop(bound);
        device.preload();
        Ok(Arc::new(device))
    }

    #[inline]
    pub fn bind(&self) -> Result<Bound> {
        let mut before = ptr::null_mut();
        // SAFETY: the call writes one handle, to a local variable.
        match unsafe { self.calls.cuCtxGetCurrent(&raw mut before) } {
            Err(error) if is_final(&error) => return Err(error),
            // The earlier context is not restored then. An error here would prevent frees.
            Err(_) => before = ptr::null_mut(),
            Ok(()) => {}
        }
        let changed = before != self.context.0;
        if changed {
            // SAFETY: the context is retained as long as `self` lives.
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
        idle.map_or_else(|| self.create_stream(), Ok)
    }

    /// The stream has no pending work.
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
    pub fn create_stream(&self) -> Result<Handle<CUstream_st>> {
        let mut stream = ptr::null_mut();
        // SAFETY: the call writes one handle, to a local variable.
        unsafe { self.calls.cuStreamCreate(&raw mut stream, NON_BLOCKING) }?;
        Ok(Handle(stream))
    }

    /// Runs calls on an internal stream and waits for them, even if one fails. They may use memory of the caller, which nothing lists: returns only after
    /// completion, or if the stream is gone with its context. An answer may fail for long, for example while another thread captures a graph.
    pub fn run_and_wait<T>(&self, run: impl FnOnce(&InternalStream) -> Result<T>) -> Result<T> {
        self.run_and_wait_for(u32::MAX, run)
    }

    /// As [`run_and_wait`](Self::run_and_wait), for calls that use memory of the device alone, in the order of the stream: returns the error also if the driver
    /// does not answer.
    pub fn run_and_ask<T>(&self, run: impl FnOnce(&InternalStream) -> Result<T>) -> Result<T> {
        self.run_and_wait_for(TRIES, run)
    }

    fn run_and_wait_for<T>(&self, most_silent: u32, run: impl FnOnce(&InternalStream) -> Result<T>) -> Result<T> {
        let _bound = self.bind()?;
        let internal = self.take_internal_stream();
        let outcome = run(&internal);
        let mut silent = 0_u32;
        let over = loop {
            // SAFETY: the internal stream lives as long as the device.
            match unsafe { self.calls.cuStreamSynchronize(internal.stream()) } {
                Err(error) if !is_final(&error) && !is_of_no_stream(&error) && silent < most_silent => match self.is_idle(&internal) {
                    Some(true) => break Err(error),
                    Some(false) => silent = 0,
                    None if silent > TRIES => {
                        if silent == TRIES + 1 {
                            event!(warn, "a blocking call waits for an answer of the driver");
                        }
                        silent = silent.saturating_add(1);
                        thread::sleep(Duration::from_millis(1));
                    }
                    None => silent += 1,
                },
                over => break over,
            }
        };
        let mut internal_streams = self.internal_streams();
        internal_streams.idle.push(internal);
        if internal_streams.waiting > 0 {
            self.freed.notify_one();
        }
        drop(internal_streams);
        let value = outcome?;
        over.map(|()| value)
    }

    fn is_idle(&self, internal: &InternalStream) -> Option<bool> {
        // SAFETY: the internal stream lives as long as the device.
        match unsafe { self.calls.cuStreamQuery(internal.stream()) } {
            Ok(()) => Some(true),
            Err(Error::Driver { code: code::NOT_READY, .. }) => Some(false),
            Err(_) => None,
        }
    }

    fn take_internal_stream(&self) -> InternalStream {
        let mut internal_streams = self.internal_streams();
        loop {
            if let Some(internal) = internal_streams.idle.pop() {
                return internal;
            }
            internal_streams.waiting += 1;
            internal_streams = self.freed.wait(internal_streams).unwrap_or_else(PoisonError::into_inner);
            internal_streams.waiting -= 1;
        }
    }

    pub fn leak(&self) {
        self.is_leaked.store(true, Relaxed);
    }

    fn internal_streams(&self) -> MutexGuard<'_, InternalStreams> {
        self.internal_streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// Returns true if this device may access a peer's memory.
    pub fn may_access(&self, peer: u32) -> bool {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer)
    }
}

impl InternalStream {
    pub const fn stream(&self) -> CUstream {
        self.stream.0
    }

    /// Returns a pinned word, the first of [`fill::MOST`] bytes, exclusive to the holder of this stream and its operations.
    pub const fn word(&self) -> NonNull<u64> {
        self.word.place().cast()
    }
}

impl Drop for Device {
    /// Ignores errors of the driver: the release of the context frees everything.
    fn drop(&mut self) {
        if self.is_leaked.load(Relaxed) || process::is_forked() {
            // The pool's drop would destroy it, which may wait for the kernel.
            core::mem::forget(self.pool.take());
            return;
        }
        let _bound = self.bind();
        let internal_streams = std::mem::take(&mut *self.internal_streams());
        for internal in internal_streams.idle {
            // SAFETY: the stream was idle, so that no call uses it, and it is dropped here.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(internal.stream()) };
        }
        for stream in std::mem::take(&mut *self.streams()) {
            // SAFETY: no queue uses a stream of this list.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(stream.0) };
        }
        for stager in std::mem::take(&mut *self.stagers()) {
            // SAFETY: a queue keeps the device alive, so there is none, and no copy that uses the stager.
            let _ = unsafe { self.calls.cuStreamDestroy_v2(stager.stream()) };
        }
        self.stagings.free_all();
        self.words.free_all();
        self.events.destroy();
        drop(self.pool.take());
        // SAFETY: `open` retained the context once. The resources that were created in it are released.
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
            // SAFETY: the context was current in this thread. If its owner has destroyed it meanwhile, the driver returns an error.
            let _ = unsafe { self.calls.cuCtxSetCurrent(before.0) };
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub managed: bool,
    pub concurrent_managed_access: bool,
    native_atomics: bool,
    integrated: bool,
    /// Host memory has the same device address, and accesses have scopes.
    system_scope: bool,
    pub writes_words: bool,
    pools: bool,
    /// `None` without address ranges.
    pub granularity: Option<u64>,
    pub cooperative: bool,
    pub processors: u32,
}

const SCOPED: u32 = 7;

pub(super) const LARGEST_ALIGN: u64 = 2 << 20;

impl Facts {
    fn query(driver: &Driver, device: CUdevice, ordinal: u32) -> Result<Self> {
        let calls = driver.calls();
        let number = |which| driver.attribute(device, which);
        let has = |which| number(which).map(|value| value != 0);
        let mapped = has(attribute::CAN_MAP_HOST_MEMORY)? && has(attribute::UNIFIED_ADDRESSING)?;
        // An older driver rejects the attribute.
        let newer = |which| match has(which) {
            Err(Error::Driver { code: code::INVALID_VALUE, .. }) => Ok(false),
            answer => answer,
        };
        Ok(Self {
            managed: has(attribute::MANAGED_MEMORY)? && calls.cuMemAllocManaged.is_some(),
            concurrent_managed_access: has(attribute::CONCURRENT_MANAGED_ACCESS)?,
            native_atomics: has(attribute::HOST_NATIVE_ATOMICS)?,
            integrated: has(attribute::INTEGRATED)?,
            system_scope: mapped && number(attribute::CAPABILITY_MAJOR)? >= SCOPED,
            writes_words: newer(attribute::WRITES_WORDS)? && calls.cuStreamWriteValue64_v2.is_some(),
            pools: newer(attribute::MEMORY_POOLS)? && calls.has_pools(),
            granularity: if newer(attribute::VIRTUAL_MEMORY_MANAGEMENT)? && calls.has_address_ranges() {
                calls.granularity(ordinal).ok().filter(|bytes| bytes.is_power_of_two())
            } else {
                None
            },
            cooperative: has(attribute::COOPERATIVE_LAUNCH)? && calls.cuLaunchCooperativeKernel.is_some(),
            processors: number(attribute::PROCESSORS)?,
        })
    }
}

impl Inner {
    pub(super) fn capabilities_of(&self, ordinal: u32) -> Result<Capabilities> {
        let device = self.device(ordinal)?;
        let facts = &device.facts;
        let peers = (0..self.devices())
            .filter_map(|peer| self.can_access_peer(device, peer).map(|can_access| can_access.then_some(peer)).transpose())
            .collect::<Result<Vec<u32>>>()?;
        Ok(Capabilities {
            unified: facts.managed,
            concurrent_managed_access: facts.concurrent_managed_access,
            system_scope: facts.system_scope,
            host_native_atomics: facts.native_atomics,
            shared_memory: facts.integrated,
            stream_ordered: device.pool.is_some(),
            largest_align: LARGEST_ALIGN,
            mapping_granularity: facts.granularity,
            peers,
        })
    }
}

impl CudaBackend {
    /// Returns a proof that read-modify-writes of pinned memory are atomic between host and device; `None` if not reported.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), the driver's error.
    pub fn system_atomics(&self, device: u32) -> Result<Option<SystemAtomics>> {
        let has = self.inner.device(device)?.facts.native_atomics;
        // SAFETY: the device reports native atomic operations on host memory, which covers pinned memory.
        Ok(has.then(|| unsafe { SystemAtomics::assume() }))
    }
}

impl Inner {
    fn can_access_peer(&self, device: &Device, peer: u32) -> Result<bool> {
        let calls = device.calls;
        if device.ordinal == peer || calls.cuDeviceCanAccessPeer.is_none() || calls.cuCtxEnablePeerAccess.is_none() {
            return Ok(false);
        }
        let (other, mut can) = (self.driver.device(peer)?, 0);
        // SAFETY: the call writes one integer, to a local variable.
        unsafe { calls.cuDeviceCanAccessPeer(&raw mut can, device.handle, other) }?;
        Ok(can != 0)
    }

    pub(super) fn have_peer_access(&self, one: u32, other: u32) -> bool {
        let has = |device: u32, peer: u32| self.device(device).is_ok_and(|device| device.may_access(peer));
        has(one, other) || has(other, one)
    }

    pub(super) fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        let (home, other) = (self.device(device)?, self.device(peer)?);
        if device == peer {
            return Ok(());
        }
        if !self.can_access_peer(home, peer)? {
            return Err(Error::Unsupported { what: "peer access between these devices" });
        }
        let _mapping = other.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut peers = home.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.contains(&peer) == enabled {
            return Ok(());
        }
        let _bound = home.bind()?;
        let context = other.context().0;
        // Access that another library has set already stays after a failure.
        let changes_context = Cell::new(true);
        let set = |enabled: bool| {
            let said = if !changes_context.get() {
                Ok(())
            } else if enabled {
                // SAFETY: `other` retains the context as long as the backend lives.
                unsafe { home.calls.cuCtxEnablePeerAccess(context, 0) }
            } else {
                // SAFETY: `other` retains the context as long as the backend lives.
                unsafe { home.calls.cuCtxDisablePeerAccess(context) }
            };
            match said {
                Ok(()) => {}
                Err(Error::Driver { code: code::PEER_ACCESS_ALREADY_ENABLED, .. }) if enabled => changes_context.set(false),
                Err(Error::Driver { code: code::PEER_ACCESS_NOT_ENABLED, .. }) if !enabled => changes_context.set(false),
                Err(error) => return Err(error),
            }
            if let Some(pool) = &other.pool {
                pool.set_access(device, enabled)?;
            }
            self.set_access_to_parts(other, device, if enabled { READ_WRITE } else { NO_ACCESS })
        };
        if let Err(error) = set(enabled) {
            // Else some access would differ from the list, and a later call would take it for done.
            let _ = set(!enabled);
            return Err(error);
        }
        let counts = &self.counts;
        if enabled { &counts.peer_enables } else { &counts.peer_disables }.fetch_add(1, Relaxed);
        if enabled {
            peers.insert(peer);
        } else {
            peers.remove(&peer);
        }
        Ok(())
    }
}

/// The driver fills or copies fewer bytes with other kernels or engines.
const HALF: usize = 256 << 10;

unsafe extern "C" fn nothing(_: *mut c_void) {}

impl Device {
    /// Uses each of the driver's lazily loaded kernels and engines once, because loading one may wait for every running kernel. A failure is ignored: the first
    /// use by an operation reports the error.
    fn preload(&self) {
        let mut address = 0;
        let allocated = self.run_and_ask(|internal| match &self.pool {
            Some(pool) => pool.allocate(2 * HALF, internal.stream()).map(|memory| address = memory),
            // SAFETY: the call writes one address, to a local variable.
            None => unsafe { self.calls.cuMemAlloc_v2(&raw mut address, 2 * HALF) },
        });
        if address == 0 {
            return;
        }
        let _ = allocated.and_then(|()| self.run_and_ask(|internal| self.use_each_once(internal, address)));
        let free = || {
            let mut is_freed = false;
            let _ = self.run_and_ask(|internal| {
                let freed = match self.pool {
                    // SAFETY: the memory was allocated from the pool above, is used by no later call, and is not freed yet.
                    Some(_) => unsafe { self.calls.cuMemFreeAsync(address, internal.stream()) },
                    // SAFETY: the memory was allocated by `cuMemAlloc` above, is used by no later call, and is not freed yet.
                    None => unsafe { self.calls.cuMemFree_v2(address) },
                };
                is_freed = freed.is_ok();
                freed
            });
            is_freed
        };
        // A second failure means that the context is lost.
        if !free() {
            free();
        }
    }

    fn use_each_once(&self, internal: &InternalStream, address: CUdeviceptr) -> Result<()> {
        let (calls, stream, word) = (self.calls, internal.stream(), internal.word().as_ptr());
        let half = address + HALF as u64;
        // SAFETY: the stream's word is exclusive to this call, and no queued operation uses it.
        unsafe { word.write(0) };
        // SAFETY: all ranges are within the `2 * HALF` bytes, which are freed after this. The stream's word is exclusive to this call until the stream is
        // synchronised.
        let outcomes = unsafe {
            [
                calls.cuMemsetD8Async(address, 0, 2 * HALF, stream),
                calls.cuMemsetD32Async.map_or(Ok(()), |_| calls.cuMemsetD32Async(address, 0, HALF / 4, stream)),
                calls.cuMemcpyDtoDAsync_v2(half, address, HALF, stream),
                calls.cuMemcpyHtoDAsync_v2(address, word.cast(), size_of::<u64>(), stream),
                calls.cuMemcpyDtoHAsync_v2(word.cast(), address, size_of::<u64>(), stream),
                if self.facts.writes_words { calls.cuStreamWriteValue64_v2(stream, address, 0, 0) } else { Ok(()) },
                calls.cuLaunchHostFunc.map_or(Ok(()), |_| calls.cuLaunchHostFunc(stream, nothing, ptr::null_mut())),
            ]
        };
        outcomes.into_iter().collect()
    }
}
