//! Memory: how each kind is allocated and freed, and advice about managed memory.
//!
//! | memory | allocated by | [`Owner`] | freed by | the free waits for kernels |
//! |---|---|---|---|---|
//! | device, with a pool | `cuMemAllocFromPoolAsync` | `Pool` | `cuMemFreeAsync`, behind the last use or on an internal stream | no |
//! | device, without a pool | `cuMemAlloc` | `Driver` | `cuMemFree` | yes |
//! | pinned | `cuMemHostAlloc` | `Pinned` | `cuMemFreeHost` | yes |
//! | managed | `cuMemAllocManaged` | `Driver` | `cuMemFree` | yes |
//! | pageable | Rust's allocator | `Pageable` | Rust's allocator | no |
//! | registered by the caller | - (`interop.rs`) | `Registered` | `cuMemHostUnregister` | yes |
//! | part of an address range (`address_range.rs`) | `cuMemCreate`, `cuMemMap` | `Part` | `cuMemUnmap`, `cuMemRelease` | perhaps |
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
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use std::alloc::{alloc_zeroed, dealloc};
use std::boxed::Box;
use std::io;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::device::{Device, LARGEST_ALIGN};
use super::driver::{self, Handle, code};
use super::queue::{CompletionCount, Length};
use super::resources::{device_shift, page_locked};
use super::{CudaBackend, Inner};
use crate::backend::ranges::Range;
use crate::backend::{Block, MemoryLocation, Options, Place, Prefetch, Request, StreamId, Ticket, Uses};
use crate::{Error, Result};

pub(super) enum Owner {
    Driver(CUdeviceptr),
    Pool(CUdeviceptr),
    Pinned(Handle<u8>),
    Registered(Handle<u8>),
    Pageable(Handle<u8>, Layout),
    Part(Part),
    Adopted(#[allow(dead_code, reason = "to be dropped")] Box<dyn Send + Sync>),
}

/// A handle of physical memory that is mapped at a place of an [address range](super::address_range). Its drop leaks both.
pub(super) struct Part {
    pub handle: u64,
    pub place: ManuallyDrop<Place>,
}

impl Part {
    pub fn new(handle: u64, place: Place) -> Self {
        Self { handle, place: ManuallyDrop::new(place) }
    }
}

impl Owner {
    /// True if freeing synchronises with every kernel.
    pub const fn free_waits(&self) -> bool {
        matches!(self, Self::Driver(_) | Self::Pinned(_) | Self::Registered(_) | Self::Part(_))
    }
}

/// The alignment of each address that the driver returns.
const DRIVER_ALIGN: u64 = 256;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`.
const WRITE_COMBINED: u32 = 4;
/// `CU_MEM_ATTACH_GLOBAL`.
const GLOBAL: u32 = 1;

struct Allocation {
    owner: Owner,
    base: u64,
    shift: u64,
    ready: Option<Ticket>,
}

impl Inner {
    pub(super) fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
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
        let bytes =
            layout.size().checked_add(align.saturating_sub(DRIVER_ALIGN) as usize).ok_or_else(|| self.out_of_memory(home, request))?;
        let allocation = match location {
            MemoryLocation::Device => self.allocate_device(home, request, bytes, on)?,
            MemoryLocation::Pinned => self.allocate_pinned(home, request, bytes)?,
            MemoryLocation::Unified => self.allocate_managed(home, request, bytes)?,
            MemoryLocation::Host => allocate_pageable(layout)?,
        };
        let start = allocation.base.next_multiple_of(align);
        // Device addresses have no provenance: the host never dereferences them.
        let place = match &allocation.owner {
            Owner::Pinned(base) | Owner::Pageable(base, _) => base.0.wrapping_add((start - allocation.base) as usize),
            _ if location == MemoryLocation::Unified => ptr::with_exposed_provenance_mut(start as usize),
            _ => ptr::without_provenance_mut(start as usize),
        };
        let Some(place) = NonNull::new(place) else { return Err(Error::Unsupported { what: "memory at address 0" }) };
        let range = Range { shift: allocation.shift, ..Range::of(request, place, allocation.owner) };
        let block = self.list_range(start, range);
        if allocation.shift & (align - 1) != 0 {
            // Aligned for the host alone: the device has another address for it.
            self.ranges.kill(&block)?;
            self.deferred.free(self, &Uses::NONE, block)?;
            return Err(Error::Align { asked: align, most: 1 << allocation.shift.trailing_zeros() });
        }
        Ok(Block { ready: allocation.ready, ..block })
    }

    pub(super) fn list_range(&self, start: u64, range: Range<Owner>) -> Block {
        self.counts.of(range.location).allocated(range.bytes());
        let block = range.block(start);
        self.ranges.insert(start, range);
        block
    }

    fn allocate_device(&self, home: &Device, request: &Request, bytes: usize, on: Option<StreamId>) -> Result<Allocation> {
        let calls = home.calls;
        let is_zeroed = request.options.contains(Options::ZEROED);
        let zero = |address, stream: CUstream| {
            // SAFETY: the memory was just allocated, with this size, and is used by no other call.
            if is_zeroed { unsafe { calls.cuMemsetD8Async(address, 0, bytes, stream) } } else { Ok(()) }
        };
        let Some(pool) = &home.pool else {
            let _bound = home.bind()?;
            let mut address = 0;
            // SAFETY: the call writes one address, to a local variable.
            let said = unsafe { calls.cuMemAlloc_v2(&raw mut address, bytes) };
            said.map_err(|error| self.explain(error, home, request))?;
            if let Err(error) = if is_zeroed { home.run_and_ask(|internal| zero(address, internal.stream())) } else { Ok(()) } {
                // SAFETY: the memory was just allocated. The call waits for the fill, if that is still queued.
                let _ = unsafe { calls.cuMemFree_v2(address) };
                return Err(error);
            }
            return Ok(Allocation { owner: Owner::Driver(address), base: address, shift: 0, ready: None });
        };
        let mut address = 0;
        let mut take = |stream: CUstream| {
            address = pool.allocate(bytes, stream).map_err(|error| self.explain(error, home, request))?;
            zero(address, stream).inspect_err(|_| {
                // SAFETY: the memory is of the pool, is not freed otherwise, and the stream executes the free after the allocation.
                let _ = unsafe { calls.cuMemFreeAsync(address, stream) };
                address = 0;
            })
        };
        let outcome = match on {
            // Also after a failure: below, another stream frees the memory.
            None => home.run_and_wait(|internal| take(internal.stream())).map(|()| None),
            Some(on) => {
                let queue = self.stream(on)?;
                let length = Length::Bytes(if is_zeroed { bytes as u64 } else { 0 });
                queue.push(length, None, |op| op.call(&mut take)).map(|number| Some(Ticket { stream: on, number }))
            }
        };
        match outcome {
            Ok(ready) => Ok(Allocation { owner: Owner::Pool(address), base: address, shift: 0, ready }),
            Err(error) => {
                if address != 0 {
                    self.free_to_pool(home, address)?;
                }
                Err(error)
            }
        }
    }

    fn allocate_pinned(&self, home: &Device, request: &Request, bytes: usize) -> Result<Allocation> {
        let _bound = home.bind()?;
        let flags = if request.options.contains(Options::WRITE_COMBINED) { WRITE_COMBINED } else { 0 };
        let asked = request.layout.size() as u64;
        self.budget.take(asked)?;
        let place = page_locked(home.calls, bytes, flags).map_err(|error| {
            self.budget.give(asked);
            self.explain(error, home, request)
        })?;
        // SAFETY: the memory was just allocated, pinned and mapped.
        let shift = unsafe { device_shift(home.calls, place) }.inspect_err(|_| {
            // SAFETY: the memory was just allocated, and nothing uses it yet.
            let _ = unsafe { home.calls.cuMemFreeHost(place.as_ptr().cast()) };
            self.budget.give(asked);
        })?;
        // SAFETY: the memory was just allocated, with this size, and the host may write to it.
        unsafe { place.write_bytes(0, bytes) };
        Ok(Allocation { owner: Owner::Pinned(Handle(place.as_ptr())), base: place.as_ptr().addr() as u64, shift, ready: None })
    }

    fn allocate_managed(&self, home: &Device, request: &Request, bytes: usize) -> Result<Allocation> {
        if !home.facts.managed {
            return Err(Error::Unsupported { what: "managed memory" });
        }
        // Beside a kernel, the calls below might wait for it.
        let _no_launches = (!home.facts.concurrent_managed_access).then(|| self.block_launches());
        self.check_host_access(home)?;
        let _bound = home.bind()?;
        let mut address = 0;
        // SAFETY: the call writes one address, to a local variable.
        let said = unsafe { home.calls.cuMemAllocManaged(&raw mut address, bytes, GLOBAL) };
        said.map_err(|error| self.explain(error, home, request))?;
        if home.facts.concurrent_managed_access {
            // SAFETY: the memory was just allocated, with this size, and has one address for host and device.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_bytes(0, bytes) };
        } else {
            // By the device: there may be kernels of others, during which the host must not access the memory.
            // SAFETY: as above; nothing else uses the memory yet.
            let zeroed = home.run_and_ask(|internal| unsafe { home.calls.cuMemsetD8Async(address, 0, bytes, internal.stream()) });
            zeroed.inspect_err(|_| {
                // SAFETY: the memory was just allocated. The call waits for the fill, if that is still queued.
                let _ = unsafe { home.calls.cuMemFree_v2(address) };
            })?;
        }
        Ok(Allocation { owner: Owner::Driver(address), base: address, shift: 0, ready: None })
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
        // The range is removed first: once the free is queued, another thread may get the address.
        let Some(range) = self.ranges.remove(block) else { return false };
        let address = block.address();
        let done = CompletionCount::free(range.bytes());
        let queued = queue.push_bound(&bound, state, None, Length::Bytes(0), Some(done), |op| {
            // SAFETY: the memory is of the pool. It is freed once, because its range is removed, and after its last use, in stream order.
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
        let released = self.release_owned(home, range.owner, bytes);
        if location == MemoryLocation::Pinned {
            self.budget.give(bytes);
        }
        released
    }

    fn release_owned(&self, home: &Device, owner: Owner, bytes: u64) -> Result<()> {
        match owner {
            // SAFETY: `cuMemAlloc` or `cuMemAllocManaged` returned the address. The owner is consumed, so it is freed once; its range was removed after its
            // uses.
            Owner::Driver(address) => unsafe { home.calls.cuMemFree_v2(address) },
            Owner::Pool(address) => self.free_to_pool(home, address),
            // SAFETY: `cuMemHostAlloc` returned the address. The owner is consumed, so it is freed once; its range was removed after its uses.
            Owner::Pinned(place) => unsafe { home.calls.cuMemFreeHost(place.0.cast()) },
            // SAFETY: `cuMemHostRegister` registered the address. The owner is consumed, so it is unregistered once; its range was removed after its uses.
            Owner::Registered(place) => unsafe { home.calls.cuMemHostUnregister(place.0.cast()) },
            Owner::Pageable(place, layout) => {
                // SAFETY: Rust's allocator returned the address for this layout. The owner is consumed, so it is freed once; its range was removed after its
                // uses.
                unsafe { dealloc(place.0, layout) };
                Ok(())
            }
            Owner::Part(part) => self.release_part(home, part, bytes),
            Owner::Adopted(_) => Ok(()),
        }
    }

    /// Frees on an internal stream, which waits for no other work. Nothing uses the memory any more.
    fn free_to_pool(&self, home: &Device, address: CUdeviceptr) -> Result<()> {
        // SAFETY: the caller has the memory from the pool, frees it once, and no use is incomplete.
        home.run_and_ask(|internal| unsafe { home.calls.cuMemFreeAsync(address, internal.stream()) })
    }

    pub(super) fn explain(&self, error: Error, home: &Device, request: &Request) -> Error {
        match error {
            Error::Driver { code: code::OUT_OF_MEMORY, .. } => self.out_of_memory(home, request),
            error => error,
        }
    }

    /// An estimate: the driver does not report the largest free range.
    fn out_of_memory(&self, home: &Device, request: &Request) -> Error {
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
        // SAFETY: the call writes two integers, to local variables.
        unsafe { home.calls.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
        let kept = home.pool.as_ref().map_or(Ok(0), |pool| pool.idle_bytes())?;
        Ok((free as u64 + kept, total as u64))
    }

    pub(super) fn check_host_access(&self, home: &Device) -> Result<()> {
        driver::check_not_forked("cuMemAllocManaged")?;
        if !home.facts.concurrent_managed_access && self.has_kernels() {
            return Err(Error::Busy {
                what: "a kernel is queued or running, and the host must not access managed memory of this device until it ends",
            });
        }
        Ok(())
    }
}

fn allocate_pageable(layout: Layout) -> Result<Allocation> {
    // SAFETY: the layout has at least one byte: `allocate` has checked it.
    let Some(place) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
        return Err(Error::Map { bytes: layout.size() as u64, source: io::ErrorKind::OutOfMemory.into() });
    };
    Ok(Allocation { owner: Owner::Pageable(Handle(place.as_ptr()), layout), base: place.as_ptr().addr() as u64, shift: 0, ready: None })
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
        let to = self.location_number(to)?;
        let number = queue.push(Length::Bytes(bytes), Some(CompletionCount::prefetch(bytes)), |op| {
            // SAFETY: the memory is managed, in a live range, and freeing it waits for this operation.
            op.call(|stream| unsafe { self.calls().cuMemPrefetchAsync(address.get(), bytes as usize, to, stream) })
        })?;
        Ok(Ticket { stream: on, number })
    }

    fn location_number(&self, device: Option<u32>) -> Result<i32> {
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
        driver::check_not_forked("cuMemAdvise")?;
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
        let (side, home) = (self.inner.location_number(side)?, self.inner.device(block.device)?);
        let _bound = home.bind()?;
        // SAFETY: the memory is managed, and was just found in a live range.
        unsafe { home.calls.cuMemAdvise(address.get(), bytes as usize, number, side) }
    }
}
