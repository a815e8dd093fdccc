//! Memory: how each kind is allocated and freed, the driver's stream-ordered pool, internal pinned memory, and advice about managed memory.
//!
//! | memory | allocated by | [`Owner`] | freed by | the free waits for kernels |
//! |---|---|---|---|---|
//! | device, with a pool | `cuMemAllocFromPoolAsync` | `Pool` | `cuMemFreeAsync`, behind the last use or on an idle lane | no |
//! | device, without a pool | `cuMemAlloc` | `Driver` | `cuMemFree` | yes |
//! | pinned | `cuMemHostAlloc` | `Pinned` | `cuMemFreeHost` | yes |
//! | managed | `cuMemAllocManaged` | `Driver` | `cuMemFree` | yes |
//! | pageable | Rust's allocator | `Pageable` | Rust's allocator | no |
//! | registered by the caller | - (`interop.rs`) | `Registered` | `cuMemHostUnregister` | yes |
//! | adopted | - (`interop.rs`) | `Adopted` | a drop of the caller's value | no |
//!
//! # Order of steps
//!
//! An allocation gets the memory, zeroes it (if the host may read it, or on request), then lists it as a range and counts it. Calls find listed memory only, so
//! a step that fails frees the memory and returns its budget, and leaves nothing.
//!
//! A free marks the range dead, so that no new call finds it. After the uses, the range is removed *before* the driver frees the memory: from then on another
//! thread may get the same address, and lists a range there. If the driver's free fails, the range stays removed, and counters and budget are updated all the
//! same; if a free behind the last use cannot be queued, nothing is freed, and the dead range returns to the list for a later try.

use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::alloc::{alloc_zeroed, dealloc};
use std::boxed::Box;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use cudarc::driver::sys::{CUdeviceptr, CUmemPoolHandle_st, CUstream};

use super::copy::CompletionCount;
use super::device::{Device, LARGEST_ALIGN};
use super::driver::{self, Access, Calls, Handle, Properties, code};
use super::queue::Length;
use super::{CudaBackend, Inner};
use crate::backend::ranges::Range;
use crate::backend::{Block, MemoryLocation, Options, Prefetch, Request, StreamId, Ticket};
use crate::{Error, Result};

pub(super) enum Owner {
    Driver(CUdeviceptr),
    Pool(CUdeviceptr),
    Pinned(Handle<u8>),
    Registered(Handle<u8>),
    Pageable(Handle<u8>, Layout),
    Adopted(#[allow(dead_code, reason = "to be dropped")] Box<dyn Send + Sync>),
}

impl Owner {
    /// True if freeing synchronises with every kernel.
    pub const fn waits(&self) -> bool {
        matches!(self, Self::Driver(_) | Self::Pinned(_) | Self::Registered(_))
    }
}

const GRANTED: u64 = 256;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`.
const WRITE_COMBINED: u32 = 4;
/// `CU_MEM_ATTACH_GLOBAL`.
const GLOBAL: u32 = 1;

struct Given {
    owner: Owner,
    base: u64,
    shift: u64,
    ready: Option<Ticket>,
}

impl Inner {
    pub(super) fn give(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        let Request { location, device, layout, options } = *request;
        if let Some(on) = on {
            self.stream(on)?;
        }
        let home = self.device(device)?;
        let (size, align) = (layout.size() as u64, layout.align() as u64);
        if size == 0 {
            return Err(Error::Size { what: "size in bytes", asked: 0, least: 1, most: isize::MAX as u64 });
        }
        if align > LARGEST_ALIGN {
            return Err(Error::Align { asked: align, most: LARGEST_ALIGN });
        }
        options.check(location)?;
        let bytes = layout.size().checked_add(align.saturating_sub(GRANTED) as usize).ok_or_else(|| self.shortage(home, request))?;
        let given = match location {
            MemoryLocation::Device => self.give_device(home, request, bytes, on)?,
            MemoryLocation::Pinned => self.give_pinned(home, request, bytes)?,
            MemoryLocation::Unified => self.give_managed(home, request, bytes)?,
            MemoryLocation::Host => give_pageable(layout)?,
        };
        let start = given.base.next_multiple_of(align);
        // No provenance: the host never dereferences it.
        let place = match &given.owner {
            Owner::Pinned(base) | Owner::Pageable(base, _) => base.0.wrapping_add((start - given.base) as usize),
            _ if location == MemoryLocation::Unified => ptr::with_exposed_provenance_mut(start as usize),
            _ => ptr::without_provenance_mut(start as usize),
        };
        let Some(place) = NonNull::new(place) else { return Err(Error::Unsupported { what: "memory at address 0" }) };
        let range = Range { shift: given.shift, ..Range::of(request, place, given.owner) };
        Ok(Block { ready: given.ready, ..self.list_range(start, range) })
    }

    pub(super) fn list_range(&self, start: u64, range: Range<Owner>) -> Block {
        self.counts.of(range.location).allocated(range.bytes());
        let block = range.block(start);
        self.ranges.insert(start, range);
        block
    }

    fn give_device(&self, home: &Device, request: &Request, bytes: usize, on: Option<StreamId>) -> Result<Given> {
        let calls = home.calls;
        let is_zeroed = request.options.contains(Options::ZEROED);
        let zero = |address, stream: CUstream| {
            // SAFETY: just allocated, with this size.
            if is_zeroed { unsafe { calls.cuMemsetD8Async(address, 0, bytes, stream) } } else { Ok(()) }
        };
        let Some(pool) = &home.pool else {
            let _bound = home.bind()?;
            let mut address = 0;
            // SAFETY: writes one address.
            let said = unsafe { calls.cuMemAlloc_v2(&raw mut address, bytes) };
            said.map_err(|error| self.short(error, home, request))?;
            if let Err(error) = if is_zeroed { home.now(|lane| zero(address, lane.stream())) } else { Ok(()) } {
                // SAFETY: just allocated and unused.
                let _ = unsafe { calls.cuMemFree_v2(address) };
                return Err(error);
            }
            return Ok(Given { owner: Owner::Driver(address), base: address, shift: 0, ready: None });
        };
        let mut address = 0;
        let mut take = |stream: CUstream| {
            address = pool.take(bytes, stream).map_err(|error| self.short(error, home, request))?;
            zero(address, stream).inspect_err(|_| {
                // Ordered after its allocation. SAFETY: from the pool, freed once, unused.
                let _ = unsafe { calls.cuMemFreeAsync(address, stream) };
                address = 0;
            })
        };
        let outcome = match on {
            None => home.now(|lane| take(lane.stream())).map(|()| None),
            Some(on) => {
                let queue = self.stream(on)?;
                let length = Length::Bytes(if is_zeroed { bytes as u64 } else { 0 });
                queue.push(length, None, |op| op.call(&mut take)).map(|number| Some(Ticket { stream: on, number }))
            }
        };
        match outcome {
            Ok(ready) => Ok(Given { owner: Owner::Pool(address), base: address, shift: 0, ready }),
            Err(error) => {
                if address != 0 {
                    self.give_back(home, address)?;
                }
                Err(error)
            }
        }
    }

    fn give_pinned(&self, home: &Device, request: &Request, bytes: usize) -> Result<Given> {
        let _bound = home.bind()?;
        let flags = if request.options.contains(Options::WRITE_COMBINED) { WRITE_COMBINED } else { 0 };
        let asked = request.layout.size() as u64;
        self.budget.take(asked)?;
        let place = locked(home.calls, bytes, flags).map_err(|error| {
            self.budget.give(asked);
            self.short(error, home, request)
        })?;
        // SAFETY: just allocated, mapped and pinned.
        let shift = unsafe { shift(home.calls, place) }.inspect_err(|_| {
            // SAFETY: just allocated and unused.
            let _ = unsafe { home.calls.cuMemFreeHost(place.as_ptr().cast()) };
            self.budget.give(asked);
        })?;
        // SAFETY: just allocated, with this size.
        unsafe { place.write_bytes(0, bytes) };
        Ok(Given { owner: Owner::Pinned(Handle(place.as_ptr())), base: place.as_ptr().addr() as u64, shift, ready: None })
    }

    fn give_managed(&self, home: &Device, request: &Request, bytes: usize) -> Result<Given> {
        if !home.facts.managed {
            return Err(Error::Unsupported { what: "managed memory" });
        }
        let _alone = (!home.facts.concurrent_managed_access).then(|| self.alone());
        self.host_may_touch(home)?;
        let _bound = home.bind()?;
        let mut address = 0;
        // SAFETY: writes one address.
        let said = unsafe { home.calls.cuMemAllocManaged(&raw mut address, bytes, GLOBAL) };
        said.map_err(|error| self.short(error, home, request))?;
        let place = ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: just allocated with this size, at one address for both sides, without a conflicting kernel.
        unsafe { place.write_bytes(0, bytes) };
        Ok(Given { owner: Owner::Driver(address), base: address, shift: 0, ready: None })
    }

    /// Queues the free of a dead block behind its last use, if possible.
    pub(super) fn free_after(&self, last: Ticket, block: &Block) -> bool {
        let (Ok(queue), Ok(home)) = (self.stream(last.stream), self.device(block.device)) else { return false };
        let is_pool = matches!(self.ranges.read().owner(block), Some(Owner::Pool(_)));
        let (true, true, Ok(bound)) = (is_pool, queue.device.ordinal == home.ordinal, home.bind()) else { return false };
        let state = queue.state();
        if queue.has_unbounded_after(last.number) {
            return false;
        }
        // Afterwards another thread may get the address.
        let Some(range) = self.ranges.remove(block) else { return false };
        let address = block.address();
        let done = CompletionCount::free(range.bytes());
        let queued = queue.push_bound(&bound, state, None, Length::Bytes(0), Some(done), |op| {
            // SAFETY: from the pool, freed once, after the last use.
            op.call(|stream| unsafe { home.calls.cuMemFreeAsync(address, stream) })
        });
        if queued.is_err() {
            self.ranges.insert(address, range);
        }
        queued.is_ok()
    }

    pub(super) fn release(&self, range: Range<Owner>) -> Result<()> {
        self.counts.of(range.location).freed(range.bytes());
        let home = self.device(range.device)?;
        let _bound = home.bind();
        let (location, bytes) = (range.location, range.bytes());
        let released = self.release_owned(home, range.owner);
        if location == MemoryLocation::Pinned {
            self.budget.give(bytes);
        }
        released
    }

    fn release_owned(&self, home: &Device, owner: Owner) -> Result<()> {
        match owner {
            // SAFETY: from this call's counterpart, freed once, unused.
            Owner::Driver(address) => unsafe { home.calls.cuMemFree_v2(address) },
            Owner::Pool(address) => self.give_back(home, address),
            // SAFETY: as above.
            Owner::Pinned(place) => unsafe { home.calls.cuMemFreeHost(place.0.cast()) },
            // SAFETY: registered once, unused.
            Owner::Registered(place) => unsafe { home.calls.cuMemHostUnregister(place.0.cast()) },
            Owner::Pageable(place, layout) => {
                // SAFETY: allocated with this layout.
                unsafe { dealloc(place.0, layout) };
                Ok(())
            }
            Owner::Adopted(_) => Ok(()),
        }
    }

    /// An idle lane, to wait for no other work.
    fn give_back(&self, home: &Device, address: CUdeviceptr) -> Result<()> {
        // SAFETY: from the pool, freed once, unused.
        home.now(|lane| unsafe { home.calls.cuMemFreeAsync(address, lane.stream()) })
    }

    fn short(&self, error: Error, home: &Device, request: &Request) -> Error {
        match error {
            Error::Driver { code: code::OUT_OF_MEMORY, .. } => self.shortage(home, request),
            error => error,
        }
    }

    /// An estimate: the driver does not report the largest free range.
    fn shortage(&self, home: &Device, request: &Request) -> Error {
        let requested = request.layout.size() as u64;
        match request.location {
            MemoryLocation::Host | MemoryLocation::Pinned => Error::Map { bytes: requested, source: io::ErrorKind::OutOfMemory.into() },
            MemoryLocation::Device | MemoryLocation::Unified => {
                let free = self.memory(home).map_or(0, |(free, _)| free);
                Error::OutOfMemory { requested, free, largest: free.min(requested.saturating_sub(1)), limit: None, unavailable: None }
            }
        }
    }

    /// Returns the free bytes, idle pool bytes included, and the total.
    pub(super) fn memory(&self, home: &Device) -> Result<(u64, u64)> {
        let _bound = home.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { home.calls.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
        let kept = home.pool.as_ref().map_or(Ok(0), |pool| pool.idle())?;
        Ok((free as u64 + kept, total as u64))
    }

    pub(super) fn host_may_touch(&self, home: &Device) -> Result<()> {
        driver::check_not_forked("cuMemAllocManaged")?;
        if !home.facts.concurrent_managed_access && self.has_kernels() {
            return Err(Error::Busy {
                what: "a kernel is queued or running, and the host must not access managed memory of this device until it ends",
            });
        }
        Ok(())
    }
}

fn give_pageable(layout: Layout) -> Result<Given> {
    // SAFETY: the layout has a byte: the caller's check.
    let Some(place) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
        return Err(Error::Map { bytes: layout.size() as u64, source: io::ErrorKind::OutOfMemory.into() });
    };
    Ok(Given { owner: Owner::Pageable(Handle(place.as_ptr()), layout), base: place.as_ptr().addr() as u64, shift: 0, ready: None })
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_A_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
const NO_ACCESS: c_int = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_int = 3;
/// `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`.
const WAITS_FOR_FREES: c_int = 3;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: c_int = 7;

pub(super) struct DriverPool {
    calls: &'static Calls,
    handle: Handle<CUmemPoolHandle_st>,
}

impl Calls {
    /// Some alone could allocate but not free.
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
            most: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut handle = ptr::null_mut();
        // SAFETY: reads one structure, writes one handle.
        unsafe { calls.cuMemPoolCreate(&raw mut handle, &raw const properties) }?;
        let pool = Self { calls, handle: Handle(handle) };
        // By default, an allocation for which the pool has no memory makes its stream wait for another stream's queued free. That free may be behind a
        // persistent kernel: the caller would wait for the kernel's end instead of getting `OutOfMemory`.
        let mut never: c_int = 0;
        // SAFETY: a live pool; reads 32 bits.
        unsafe { calls.cuMemPoolSetAttribute(handle, WAITS_FOR_FREES, (&raw mut never).cast()) }?;
        let mut value = threshold;
        // SAFETY: a live pool; reads 64 bits.
        unsafe { calls.cuMemPoolSetAttribute(handle, THRESHOLD, (&raw mut value).cast()) }?;
        Ok(pool)
    }

    pub fn take(&self, bytes: usize, stream: CUstream) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: a live pool and stream; writes one address.
        unsafe { self.calls.cuMemAllocFromPoolAsync(&raw mut address, bytes, self.handle.0, stream) }?;
        Ok(address)
    }

    pub fn idle(&self) -> Result<u64> {
        let ask = |which| {
            let mut value = 0_u64;
            // SAFETY: a live pool; writes 64 bits.
            unsafe { self.calls.cuMemPoolGetAttribute(self.handle.0, which, (&raw mut value).cast()) }?;
            Ok::<u64, Error>(value)
        };
        Ok(ask(RESERVED)?.saturating_sub(ask(USED)?))
    }

    pub fn trim(&self) -> Result<()> {
        // SAFETY: a live pool.
        unsafe { self.calls.cuMemPoolTrimTo(self.handle.0, 0) }
    }

    pub fn share(&self, device: u32, is_shared: bool) -> Result<()> {
        let flags = if is_shared { READ_WRITE } else { NO_ACCESS };
        let access = Access { location: ON_A_DEVICE, device: device.cast_signed(), flags };
        // SAFETY: a live pool; reads one structure.
        unsafe { self.calls.cuMemPoolSetAccess(self.handle.0, &raw const access, 1) }
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        // SAFETY: created once, unused; else the process's end frees it.
        let _ = unsafe { self.calls.cuMemPoolDestroy(self.handle.0) };
    }
}

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const EVERYWHERE: u32 = 3;

/// Uninitialised; accessible to every device.
pub(super) fn locked(calls: &'static Calls, bytes: usize, flags: u32) -> Result<NonNull<u8>> {
    let mut pointer = ptr::null_mut::<c_void>();
    // SAFETY: writes one pointer.
    unsafe { calls.cuMemHostAlloc(&raw mut pointer, bytes, EVERYWHERE | flags) }?;
    NonNull::new(pointer.cast()).ok_or(Error::Unsupported { what: "memory at address 0" })
}

/// Device minus host address: not 0 for write-combined memory, and for registered memory on devices without host pointers.
///
/// # Safety
///
/// `place` is live, pinned and mapped.
pub(super) unsafe fn shift(calls: &'static Calls, place: NonNull<u8>) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the caller's promise; writes one address.
    unsafe { calls.cuMemHostGetDevicePointer_v2(&raw mut address, place.as_ptr().cast(), 0) }?;
    Ok(address.wrapping_sub(place.as_ptr().addr() as u64))
}

pub(super) struct PinnedChunks {
    calls: &'static Calls,
    bytes: usize,
    together: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    blocks: Vec<Place>,
    idle: Vec<Place>,
}

/// INVARIANT: pinned bytes to which the holder has exclusive access.
#[derive(Clone, Copy)]
struct Place(NonNull<u8>);

// SAFETY: exclusive to the holder, without thread affinity.
unsafe impl Send for Place {}
// SAFETY: as above; a shared reference gives only the address.
unsafe impl Sync for Place {}

pub(super) struct PinnedChunk {
    place: Place,
    home: Arc<PinnedChunks>,
}

impl PinnedChunks {
    pub fn new(calls: &'static Calls, bytes: usize, together: usize) -> Self {
        Self { calls, bytes, together, held: Mutex::default() }
    }

    pub fn take(self: &Arc<Self>) -> Result<PinnedChunk> {
        let idle = self.held().idle.pop();
        let place = match idle {
            Some(place) => place,
            None => {
                let block = locked(self.calls, self.bytes * self.together, 0)?;
                let mut held = self.held();
                held.blocks.push(Place(block));
                // SAFETY: within the block.
                held.idle.extend((1..self.together).map(|index| Place(unsafe { block.add(index * self.bytes) })));
                Place(block)
            }
        };
        Ok(PinnedChunk { place, home: Arc::clone(self) })
    }

    /// No chunk may be in use.
    pub fn give_back(&self) {
        for block in std::mem::take(&mut *self.held()).blocks {
            // SAFETY: allocated once, unused; else the context's end frees it.
            let _ = unsafe { self.calls.cuMemFreeHost(block.0.as_ptr().cast()) };
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PinnedChunk {
    pub const fn place(&self) -> NonNull<u8> {
        self.place.0
    }
}

impl Drop for PinnedChunk {
    fn drop(&mut self) {
        if !driver::is_forked() {
            self.home.held().idle.push(self.place);
        }
    }
}

/// Advice about managed memory (`CUmem_advise`), which moves and maps pages only.
///
/// ```
/// use ringmem::backend::Block;
/// use ringmem::backend::cuda::{Advice, CudaBackend};
///
/// /// For a table that the device reads often and the host rarely writes.
/// fn advise(backend: &CudaBackend, table: &Block) -> ringmem::Result<()> {
///     backend.advise(table, Advice::Prefer(Some(table.device)))?;
///     backend.advise(table, Advice::ReadMostly)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Each side may keep a copy.
    ReadMostly,
    /// Reverts [`ReadMostly`](Self::ReadMostly).
    NotReadMostly,
    /// Prefers a device, or the host for `None`.
    Prefer(Option<u32>),
    /// Reverts [`Prefer`](Self::Prefer).
    NoPreference,
    /// Maps the pages for a device or the host, without migration.
    MappedBy(Option<u32>),
    /// Reverts [`MappedBy`](Self::MappedBy).
    NotMappedBy(Option<u32>),
}

/// `CU_DEVICE_CPU`.
const HOST: i32 = -1;

impl Inner {
    pub(super) fn prefetch_queued(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        let Prefetch { address, bytes, to } = *prefetch;
        let queue = self.stream(on)?;
        if self.ranges.read().find(address.get(), bytes, false, "prefetch")?.location != MemoryLocation::Unified {
            return Err(Error::Unsupported { what: "a prefetch of memory that is not managed" });
        }
        let target = to.map_or(Ok(&queue.device), |to| self.device(to))?;
        if [&queue.device, target].iter().any(|device| !device.facts.concurrent_managed_access) {
            return Err(Error::Unsupported { what: "a prefetch on a device without concurrent managed access" });
        }
        let to = self.side(to)?;
        let number = queue.push(Length::Bytes(bytes), Some(CompletionCount::prefetch(bytes)), |op| {
            // SAFETY: live managed memory; freeing it waits for this operation.
            op.call(|stream| unsafe { self.calls().cuMemPrefetchAsync(address.get(), bytes as usize, to, stream) })
        })?;
        Ok(Ticket { stream: on, number })
    }

    fn side(&self, device: Option<u32>) -> Result<i32> {
        device.map_or(Ok(HOST), |device| Ok(self.device(device)?.handle))
    }
}

impl CudaBackend {
    /// Advises the driver about a block of managed memory.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for other memory, [`Foreign`](Error::Foreign) for another backend's,
    /// [`NoDevice`](Error::NoDevice), the driver's error.
    pub fn advise(&self, block: &Block, advice: Advice) -> Result<()> {
        let Some(address) = block.device_address.filter(|_| block.location == MemoryLocation::Unified) else {
            return Err(Error::Unsupported { what: "advice about memory that is not managed" });
        };
        let bytes = block.layout.size() as u64;
        self.inner.ranges.read().find(address.get(), bytes, false, "advise")?;
        let (number, side) = match advice {
            Advice::ReadMostly => (1, None),
            Advice::NotReadMostly => (2, None),
            Advice::Prefer(side) => (3, side),
            Advice::NoPreference => (4, None),
            Advice::MappedBy(side) => (5, side),
            Advice::NotMappedBy(side) => (6, side),
        };
        let (side, home) = (self.inner.side(side)?, self.inner.device(block.device)?);
        let _bound = home.bind()?;
        // SAFETY: live managed memory, just found.
        unsafe { home.calls.cuMemAdvise(address.get(), bytes as usize, number, side) }
    }
}
