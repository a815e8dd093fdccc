use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Relaxed;
use std::alloc::{alloc_zeroed, dealloc};
use std::boxed::Box;
use std::io;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::Inner;
use super::call::Handle;
use super::code::number;
use super::completion_count::CompletionCount;
use super::device::Device;
use super::facts::LARGEST_ALIGN;
use super::pinned_chunks::{locked, shift};
use super::process;
use super::queue::Length;
use crate::backend::ranges::Range;
use crate::backend::{Block, MemoryLocation, Options, Request, StreamId, Ticket};
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
        if queue.last_unbounded.load(Relaxed) > last.number {
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
            Error::Driver { code: number::OUT_OF_MEMORY, .. } => self.shortage(home, request),
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
        process::takes_locks("cuMemAllocManaged")?;
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
