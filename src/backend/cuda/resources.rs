//! The resources that a [`Device`](super::device::Device) owns and lends: events, pinned memory, stagers, and the driver's memory pool. A context must be
//! bound for every call.
//!
//! 1. An [`Event`] marks completion. It is idle in [`Events`], or has one owner: a queue or a stager. A queue shares it with waiters, and records it again only
//!    while it has the only reference: else a waiter would wait for later work. When the last reference is dropped, the event is idle again. It is destroyed
//!    with the device. An event that could not be recorded is dropped, so it is idle.
//! 2. A [`PinnedChunk`] is a part of internal pinned memory, and returns to its [`PinnedChunks`] when it is dropped.
//! 3. A [`Stager`] has a stream, a chunk and events for a staged copy.
//! 4. A [`DriverPool`] allocates device memory in the order of a stream.
//!
//! After a fork nothing returns to a pool: the child has copies of values that belong to the parent.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use cudarc::driver::sys::{CUdeviceptr, CUevent, CUevent_st, CUmemPoolHandle_st, CUstream, CUstream_st};

use super::driver::{Access, Calls, Handle, Properties, code};
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
        // SAFETY: the call writes one handle, to a local variable.
        unsafe { self.calls.cuEventCreate(&raw mut handle, FLAGS) }?;
        Ok(Handle(handle))
    }

    pub fn take(self: &Arc<Self>) -> Result<Event> {
        let idle = self.idle().pop();
        let handle = idle.map_or_else(|| self.create(), Ok)?;
        Ok(Event { handle, home: Arc::clone(self) })
    }

    pub fn destroy(&self) {
        let idle = std::mem::take(&mut *self.idle());
        for event in idle {
            // SAFETY: an idle event is used by no queue and no stager. If the call fails, the end of the context destroys the event.
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

    /// Records the event after all operations of the stream. The caller has the only reference.
    pub fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the event is live while `self` is. Each caller passes a stream of a queue or a stager that it holds.
        unsafe { self.home.calls.cuEventRecord(self.handle.0, stream) }
    }

    pub fn is_complete(&self) -> Result<bool> {
        // SAFETY: the event is live while `self` is.
        match unsafe { self.home.calls.cuEventQuery(self.handle.0) } {
            Ok(()) => Ok(true),
            Err(Error::Driver { code: code::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is live while `self` is, and is not recorded again while this reference exists.
        unsafe { self.home.calls.cuEventSynchronize(self.handle.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.home.idle().push(self.handle);
        }
    }
}

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const EVERYWHERE: u32 = 3;

/// Allocates pinned memory, uninitialised, which every device can access.
pub(super) fn page_locked(calls: &'static Calls, bytes: usize, flags: u32) -> Result<NonNull<u8>> {
    let mut pointer = ptr::null_mut::<c_void>();
    // SAFETY: the call writes one pointer, to a local variable.
    unsafe { calls.cuMemHostAlloc(&raw mut pointer, bytes, EVERYWHERE | flags) }?;
    NonNull::new(pointer.cast()).ok_or(Error::Unsupported { what: "memory at address 0" })
}

/// Device minus host address: not 0 for write-combined memory, and for registered memory on devices without host pointers.
///
/// # Safety
///
/// `place` is live, pinned and mapped.
pub(super) unsafe fn device_shift(calls: &'static Calls, place: NonNull<u8>) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the memory is live, pinned and mapped: the caller's promise. The call writes one address, to a local variable.
    unsafe { calls.cuMemHostGetDevicePointer_v2(&raw mut address, place.as_ptr().cast(), 0) }?;
    Ok(address.wrapping_sub(place.as_ptr().addr() as u64))
}

/// A pool of internal pinned memory, in chunks of one size. A context must be bound for each call. Allocating may wait for a running kernel: it happens
/// when a device is opened, and later if more chunks are in use than ever before.
///
/// INVARIANT: each chunk of `blocks` is in `idle` or held by one [`PinnedChunk`]; in a fork, nothing returns.
pub(super) struct PinnedChunks {
    calls: &'static Calls,
    bytes: usize,
    per_block: usize,
    chunks: Mutex<Chunks>,
}

#[derive(Default)]
struct Chunks {
    blocks: Vec<ChunkAddress>,
    idle: Vec<ChunkAddress>,
}

/// INVARIANT: pinned bytes to which the holder has exclusive access.
#[derive(Clone, Copy)]
struct ChunkAddress(NonNull<u8>);

// SAFETY: the bytes are exclusive to the holder (the invariant), and belong to no thread.
unsafe impl Send for ChunkAddress {}
// SAFETY: a shared reference gives the address alone.
unsafe impl Sync for ChunkAddress {}

pub(super) struct PinnedChunk {
    place: ChunkAddress,
    home: Arc<PinnedChunks>,
}

impl PinnedChunks {
    pub fn new(calls: &'static Calls, bytes: usize, per_block: usize) -> Self {
        Self { calls, bytes, per_block, chunks: Mutex::default() }
    }

    pub fn take(self: &Arc<Self>) -> Result<PinnedChunk> {
        let idle = self.chunks().idle.pop();
        let place = match idle {
            Some(place) => place,
            None => {
                let block = page_locked(self.calls, self.bytes * self.per_block, 0)?;
                let mut chunks = self.chunks();
                chunks.blocks.push(ChunkAddress(block));
                // SAFETY: the index is below the number of chunks of the block.
                chunks.idle.extend((1..self.per_block).map(|index| ChunkAddress(unsafe { block.add(index * self.bytes) })));
                ChunkAddress(block)
            }
        };
        Ok(PinnedChunk { place, home: Arc::clone(self) })
    }

    /// Frees all blocks. No chunk is in use.
    pub fn free_all(&self) {
        for block in std::mem::take(&mut *self.chunks()).blocks {
            // SAFETY: the block was allocated once, and no chunk of it is in use: the caller's promise. If the call fails, the end of the context frees it.
            let _ = unsafe { self.calls.cuMemFreeHost(block.0.as_ptr().cast()) };
        }
    }

    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PinnedChunk {
    pub const fn place(&self) -> NonNull<u8> {
        self.place.0
    }
}

impl Drop for PinnedChunk {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.home.chunks().idle.push(self.place);
        }
    }
}

/// Index of the event of [`Stager::events`] that marks the end of a part's first step.
pub(super) const FILLED: usize = 2;

/// What a staged copy of several parts needs beside the queue's own staging: see `copy.rs`.
pub(super) struct Stager {
    stream: Handle<CUstream_st>,
    pub staging: PinnedChunk,
    /// Events 0 and 1 mark that the last part has left the queue's staging or the stager's; the event [`FILLED`] marks that a part's first step is complete.
    pub events: [Event; FILLED + 1],
}

impl Stager {
    /// A stream of its own is created last, by `stream`.
    pub fn new(events: &Arc<Events>, stagings: &Arc<PinnedChunks>, stream: impl FnOnce() -> Result<Handle<CUstream_st>>) -> Result<Self> {
        let event = || events.take();
        let (staging, events) = (stagings.take()?, [event()?, event()?, event()?]);
        Ok(Self { stream: stream()?, staging, events })
    }

    pub const fn stream(&self) -> CUstream {
        self.stream.0
    }
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(super) const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(super) const ON_A_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
pub(super) const NO_ACCESS: c_int = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(super) const READ_WRITE: c_int = 3;
/// `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`.
const WAITS_FOR_FREES: c_int = 3;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: c_int = 7;

/// A memory pool of the driver: stream-ordered device memory, kept when freed. A context must be bound for each call.
///
/// It is not the default pool of the device, which other libraries share: with its threshold of 0, that one releases free memory at each synchronisation.
pub(super) struct DriverPool {
    calls: &'static Calls,
    handle: Handle<CUmemPoolHandle_st>,
}

impl Calls {
    /// Returns true if the driver has all functions of pools: with some alone, memory could be allocated but not freed.
    pub fn has_pools(&self) -> bool {
        let Self { cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolCreate, cuMemPoolDestroy, .. } = self;
        let Self { cuMemPoolSetAttribute, cuMemPoolGetAttribute, cuMemPoolSetAccess, cuMemPoolTrimTo, .. } = self;
        cuMemAllocFromPoolAsync.is_some()
            && cuMemFreeAsync.is_some()
            && cuMemPoolCreate.is_some()
            && cuMemPoolDestroy.is_some()
            && cuMemPoolSetAttribute.is_some()
            && cuMemPoolGetAttribute.is_some()
            && cuMemPoolSetAccess.is_some()
            && cuMemPoolTrimTo.is_some()
    }
}

impl DriverPool {
    pub fn new(calls: &'static Calls, device: u32, threshold: u64) -> Result<Self> {
        let properties = Properties {
            allocation: PINNED,
            handles: 0,
            location: ON_A_DEVICE,
            device: device.cast_signed(),
            security: ptr::null_mut(),
            max_bytes: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the call reads one structure and writes one handle, both local variables.
        unsafe { calls.cuMemPoolCreate(&raw mut handle, &raw const properties) }?;
        let pool = Self { calls, handle: Handle(handle) };
        // By default, an allocation for which the pool has no memory makes its stream wait for another stream's queued free. That free may be behind a
        // persistent kernel: the caller would wait for the kernel's end instead of getting `OutOfMemory`.
        let mut never: c_int = 0;
        // SAFETY: the pool is live. The attribute has 32 bits.
        unsafe { calls.cuMemPoolSetAttribute(handle, WAITS_FOR_FREES, (&raw mut never).cast()) }?;
        let mut value = threshold;
        // SAFETY: the pool is live. The attribute has 64 bits.
        unsafe { calls.cuMemPoolSetAttribute(handle, THRESHOLD, (&raw mut value).cast()) }?;
        Ok(pool)
    }

    pub fn allocate(&self, bytes: usize, stream: CUstream) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the pool is live, and each caller passes a stream that it holds. The call writes one address, to a local variable.
        unsafe { self.calls.cuMemAllocFromPoolAsync(&raw mut address, bytes, self.handle.0, stream) }?;
        Ok(address)
    }

    pub fn idle_bytes(&self) -> Result<u64> {
        let ask = |which| {
            let mut value = 0_u64;
            // SAFETY: the pool is live. The attribute has 64 bits, which the call writes to a local variable.
            unsafe { self.calls.cuMemPoolGetAttribute(self.handle.0, which, (&raw mut value).cast()) }?;
            Ok::<u64, Error>(value)
        };
        Ok(ask(RESERVED)?.saturating_sub(ask(USED)?))
    }

    pub fn trim(&self) -> Result<()> {
        // SAFETY: the pool is live.
        unsafe { self.calls.cuMemPoolTrimTo(self.handle.0, 0) }
    }

    pub fn set_access(&self, device: u32, is_shared: bool) -> Result<()> {
        let flags = if is_shared { READ_WRITE } else { NO_ACCESS };
        let access = Access { location: ON_A_DEVICE, device: device.cast_signed(), flags };
        // SAFETY: the pool is live. The call reads one structure, a local variable.
        unsafe { self.calls.cuMemPoolSetAccess(self.handle.0, &raw const access, 1) }
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        // SAFETY: the pool was created once, and no stream uses it. If the call fails, the end of the process frees it.
        let _ = unsafe { self.calls.cuMemPoolDestroy(self.handle.0) };
    }
}
