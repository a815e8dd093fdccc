//! Address ranges: addresses from `cuMemAddressReserve`, behind which handles of physical memory (`cuMemCreate`) are mapped.
//!
//! | step | calls, in order |
//! |---|---|
//! | reserve | `cuMemAddressReserve` |
//! | map | `cuMemCreate`, `cuMemMap`, `cuMemSetAccess` |
//! | remap | `cuMemUnmap`, `cuMemMap`, `cuMemSetAccess` |
//! | free | `cuMemUnmap`, `cuMemRelease` |
//! | after the last drop | `cuMemAddressFree` |
//!
//! 1. A handle is mapped whole, at one place. A block is one handle.
//! 2. None of these calls is ordered with a stream: the uses of the memory must be complete. Whether they wait for a running kernel is not documented. So
//!    mapping and moving are refused while one is queued or running, and no launch begins meanwhile; a free is deferred (`Owner::free_waits`), as is the return
//!    of addresses.
//! 3. Memory from a driver's pool follows the pool's access rights; mapped memory has its own. [`Device::mapping`](super::device::Device::mapping) is held while
//!    a part gets the rights of today's peers and is listed, and while a peer's right changes for the listed parts: none is missed.
//!
//! # What a failure leaves
//!
//! A step that fails reverts the earlier ones, in reverse. If a move fails after the unmapping, the handle returns to its old place; if the driver refuses that
//! too, the memory is freed. If the unmapping of a free fails, the place stays occupied and the handle is released: the driver frees the memory with the
//! process.

use core::alloc::Layout;
use core::mem;
use core::ptr::{self, NonNull};
use std::boxed::Box;
use std::sync::{Arc, PoisonError, Weak};
use std::vec::Vec;

use cudarc::driver::sys::CUdeviceptr;

use super::Inner;
use super::device::Device;
use super::driver::{Access, Calls, MemoryProperties, code};
use super::memory::Owner;
use super::resources::{ON_A_DEVICE, PINNED, READ_WRITE};
use crate::backend::ranges::Range;
use crate::backend::{AddressRange, Block, DeviceAddress, MemoryLocation, Options, Place, Request};
use crate::{Error, Result};

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const MINIMUM: u32 = 0;

/// Reserved addresses. After the last reference, [`Deferred`](super::deferred::Deferred) gives them back when no kernel runs.
struct Addresses {
    backend: Weak<Inner>,
    calls: &'static Calls,
    reserved: Reserved,
}

/// The addresses of one `cuMemAddressReserve`.
#[derive(Clone, Copy)]
pub(super) struct Reserved {
    base: CUdeviceptr,
    bytes: usize,
}

impl Reserved {
    /// Gives the addresses back. A part that the driver refused to unmap lets this call fail: they stay reserved.
    pub fn give_back(self, calls: &Calls) -> Result<()> {
        // SAFETY: `cuMemAddressReserve` returned the addresses, and no block has a part of them: each would hold a reference.
        unsafe { calls.cuMemAddressFree(self.base, self.bytes) }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        match self.backend.upgrade() {
            Some(backend) => backend.deferred.unreserve(self.reserved),
            None => drop(self.reserved.give_back(self.calls)),
        }
    }
}

/// A handle that is mapped at a place.
pub(super) struct Part {
    handle: u64,
    place: Place,
}

fn properties(device: u32) -> MemoryProperties {
    MemoryProperties {
        allocation: PINNED,
        handles: 0,
        location: ON_A_DEVICE,
        device: device.cast_signed(),
        security: ptr::null_mut(),
        flags: [0; 8],
    }
}

impl Calls {
    /// Returns true if the driver has all functions of address ranges.
    pub fn has_address_ranges(&self) -> bool {
        let Self { cuMemAddressReserve, cuMemAddressFree, cuMemCreate, cuMemRelease, cuMemMap, cuMemUnmap, .. } = self;
        cuMemAddressReserve.is_some()
            && cuMemAddressFree.is_some()
            && cuMemCreate.is_some()
            && cuMemRelease.is_some()
            && cuMemMap.is_some()
            && cuMemUnmap.is_some()
            && self.cuMemSetAccess.is_some()
            && self.cuMemGetAllocationGranularity.is_some()
    }

    /// Returns the unit of mapped memory in bytes.
    pub fn granularity(&self, device: u32) -> Result<u64> {
        let (mut bytes, asked) = (0, properties(device));
        // SAFETY: the call reads one structure and writes one number, both local variables.
        unsafe { self.cuMemGetAllocationGranularity(&raw mut bytes, &raw const asked, MINIMUM) }?;
        Ok(bytes as u64)
    }
}

impl Inner {
    pub(super) fn reserve_addresses(self: &Arc<Self>, device: u32, bytes: u64) -> Result<AddressRange> {
        let home = self.device(device)?;
        let Some(granularity) = home.facts.granularity else { return Err(Error::Unsupported { what: "an address range" }) };
        let most = (isize::MAX as u64) / granularity * granularity;
        if bytes == 0 || bytes > most {
            return Err(Error::Size { what: "size in bytes", asked: bytes, least: 1, most });
        }
        let (bytes, mut base) = (bytes.next_multiple_of(granularity), 0);
        let _bound = home.bind()?;
        // SAFETY: the call writes one address, to a local variable.
        unsafe { home.calls.cuMemAddressReserve(&raw mut base, bytes as usize, granularity as usize, 0, 0) }?;
        let held = Addresses { backend: Arc::downgrade(self), calls: home.calls, reserved: Reserved { base, bytes: bytes as usize } };
        Ok(AddressRange::new(self.id, device, DeviceAddress::new(base), bytes, granularity, Box::new(held)))
    }

    pub(super) fn map_part(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        range.held::<Addresses>(self.id)?;
        let home = self.device(range.device())?;
        let place = range.occupy(offset, bytes)?;
        let most = isize::MAX as u64;
        let layout = Layout::from_size_align(bytes as usize, range.granularity() as usize);
        let layout = layout.map_err(|_| Error::Size { what: "size in bytes", asked: bytes, least: 1, most })?;
        let request = Request { location: MemoryLocation::Device, device: range.device(), layout, options: Options::empty() };
        let _no_launches = self.block_launches();
        self.check_no_kernels()?;
        let _bound = home.bind()?;
        let handle = self.create(home, &request)?;
        let _mapping = home.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let address = address_of(&place);
        if let Err(error) = self.attach(home, handle, address, bytes) {
            // SAFETY: the handle was just created, and is mapped nowhere.
            let _ = unsafe { home.calls.cuMemRelease(handle) };
            return Err(error);
        }
        let part = Range::of(&request, number(address)?, Owner::Part(Part { handle, place }));
        Ok(self.list_range(address, Range { joins: true, ..part }))
    }

    /// # Safety
    ///
    /// Nothing uses the block.
    pub(super) unsafe fn move_part(&self, block: &mut Block, offset: u64) -> Result<()> {
        let (from, bytes) = (block.address(), block.layout.size() as u64);
        let foreign = || Error::Foreign { call: "remap", address: from, layouts: None };
        let range = match self.ranges.read().owner(block) {
            Some(Owner::Part(part)) => part.place.range().clone(),
            _ => return Err(foreign()),
        };
        range.held::<Addresses>(self.id)?;
        let (home, target) = (self.device(range.device())?, range.occupy(offset, bytes)?);
        let to = address_of(&target);
        let to_number = number(to)?;
        let _no_launches = self.block_launches();
        self.check_no_kernels()?;
        let _bound = home.bind()?;
        let _mapping = home.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        self.ranges.kill(block)?;
        let range = self.ranges.remove(block).ok_or_else(foreign)?;
        let Owner::Part(Part { handle, place: source }) = range.owner else { return Err(foreign()) };
        let list = |address: u64, number, place| {
            let range = Range { place: number, owner: Owner::Part(Part { handle, place }), is_dead: false, ..range };
            let block = range.block(address);
            self.ranges.insert(address, range);
            block
        };
        // SAFETY: the whole block is mapped there; its range is removed, and the caller promises that nothing uses it.
        let moved = unsafe { home.calls.cuMemUnmap(from, bytes as usize) };
        if moved.is_ok() {
            match self.attach(home, handle, to, bytes) {
                Ok(()) => {
                    *block = list(to, to_number, target);
                    return Ok(());
                }
                Err(error) if self.attach(home, handle, from, bytes).is_err() => {
                    self.counts.of(range.location).freed(bytes);
                    *block = Block::empty(range.location, range.layout.align());
                    // SAFETY: the handle is mapped nowhere, and this is its only owner.
                    let _ = unsafe { home.calls.cuMemRelease(handle) };
                    return Err(error);
                }
                Err(error) => {
                    list(from, range.place, source);
                    return Err(error);
                }
            }
        }
        list(from, range.place, source);
        moved
    }

    /// Frees a part, whose range was removed.
    pub(super) fn release_part(&self, home: &Device, part: Part, bytes: u64) -> Result<()> {
        let Part { handle, place } = part;
        // SAFETY: the whole part is mapped there; its range was removed after its uses.
        let unmapped = unsafe { home.calls.cuMemUnmap(address_of(&place), bytes as usize) };
        if unmapped.is_err() {
            mem::forget(place);
        }
        // SAFETY: the part is consumed, so its handle is released once.
        let released = unsafe { home.calls.cuMemRelease(handle) };
        unmapped.and(released)
    }

    /// Sets the access of `device` to the listed parts of `other`, whose [`mapping`](Device::mapping) the caller holds.
    pub(super) fn set_access_to_parts(&self, other: &Device, device: u32, flags: i32) -> Result<()> {
        let access = [Access { location: ON_A_DEVICE, device: device.cast_signed(), flags }];
        let ranges = self.ranges.read();
        let parts = ranges.iter().filter(|(_, range)| range.device == other.ordinal && matches!(range.owner, Owner::Part(_)));
        let parts: Vec<(u64, u64)> = parts.map(|(&address, range)| (address, range.bytes())).collect();
        drop(ranges);
        parts.into_iter().try_for_each(|(address, bytes)| set_access(other, address, bytes, &access))
    }

    fn check_no_kernels(&self) -> Result<()> {
        if self.has_kernels() {
            return Err(Error::Busy { what: "a kernel is queued or running, and mapping memory may wait for it" });
        }
        Ok(())
    }

    /// Creates physical memory. What the driver's pool keeps idle is given back if there is too little.
    fn create(&self, home: &Device, request: &Request) -> Result<u64> {
        let (mut handle, asked) = (0, properties(home.ordinal));
        let mut create = || {
            // SAFETY: the call reads one structure and writes one handle, both local variables.
            unsafe { home.calls.cuMemCreate(&raw mut handle, request.layout.size(), &raw const asked, 0) }
        };
        let mut created = create();
        if let (Err(Error::Driver { code: code::OUT_OF_MEMORY, .. }), Some(pool)) = (&created, &home.pool) {
            let _ = pool.trim();
            created = create();
        }
        created.map_err(|error| self.explain(error, home, request))?;
        Ok(handle)
    }

    /// Maps a handle, and lets its device and the peers access it. A failure leaves it unmapped.
    fn attach(&self, home: &Device, handle: u64, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller has the handle, which is mapped nowhere, and occupies the addresses.
        unsafe { home.calls.cuMemMap(address, bytes as usize, 0, handle, 0) }?;
        let has_access = |device: &&Device| device.ordinal == home.ordinal || device.may_access(home.ordinal);
        let devices = self.opened().map(|device| &**device).filter(has_access);
        let access = devices.map(|device| Access { location: ON_A_DEVICE, device: device.ordinal.cast_signed(), flags: READ_WRITE });
        set_access(home, address, bytes, &access.collect::<Vec<_>>()).inspect_err(|_| {
            // SAFETY: just mapped, and used by nothing.
            let _ = unsafe { home.calls.cuMemUnmap(address, bytes as usize) };
        })
    }
}

fn set_access(home: &Device, address: u64, bytes: u64, access: &[Access]) -> Result<()> {
    // SAFETY: the part is mapped at these addresses. The call reads `access`, which outlives it.
    unsafe { home.calls.cuMemSetAccess(address, bytes as usize, access.as_ptr(), access.len()) }
}

fn address_of(place: &Place) -> u64 {
    place.range().address().get() + place.offset()
}

/// The host never dereferences a device address.
fn number(address: u64) -> Result<NonNull<u8>> {
    NonNull::new(ptr::without_provenance_mut(address as usize)).ok_or(Error::Unsupported { what: "memory at address 0" })
}
