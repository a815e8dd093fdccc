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
//!    of addresses. Reserving is not refused, nor is `set_peer`, which also changes the access to the memory of pools.
//! 3. Memory from a driver's pool follows the pool's access rights; mapped memory has its own. [`Device::mapping`](super::device::Device::mapping) is held
//!    while a part gets the rights of today's peers and is listed, and while a peer's right changes for the listed parts: none is missed. During such a change
//!    the list stays locked, and with it each part mapped: a free removes a part from the list before it unmaps it.
//! 4. Ranges have a gap of one unit after them, so that parts of two of them are never adjacent.
//!
//! # What a failure leaves
//!
//! A step that fails reverts the earlier ones, in reverse. If a move fails after the unmapping, the handle returns to its old place; if the driver refuses that
//! too, the memory is freed. If the driver refuses to unmap, the place stays occupied, and the handle is released: the driver frees the memory with the
//! process, and the addresses with it.
//!
//! # The end of the backend
//!
//! Physical memory belongs to the process, not to the context. So [`Inner::close`] frees the parts that are not freed yet, unless it gives up on a running
//! kernel. Then parts and addresses are leaked, as everything else: dropping a [`Part`] does nothing.

use core::mem::{self, ManuallyDrop};
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Acquire;
use std::boxed::Box;
use std::sync::{Arc, PoisonError, Weak};
use std::vec::Vec;

use cudarc::driver::sys::CUdeviceptr;

use super::Inner;
use super::device::Device;
use super::driver::{Access, Calls, MemoryProperties, code};
use super::memory::{Owner, Part};
use super::process;
use super::resources::{ON_A_DEVICE, PINNED, READ_WRITE};
use crate::backend::ranges::Range;
use crate::backend::{Address, AddressRange, Block, DeviceAddress, Place, Request};
use crate::{Error, Result};

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const MINIMUM: u32 = 0;

/// Reserved addresses. After the last reference, [`Deferred`](super::deferred::Deferred) gives them back when no kernel runs.
struct Addresses {
    backend: Weak<Inner>,
    /// The backend's [`Inner::is_closed`], which outlives it.
    is_closed: Arc<AtomicBool>,
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
    pub fn give_back(self, calls: &Calls) -> Result<()> {
        // SAFETY: `cuMemAddressReserve` returned the addresses, and no part of them is mapped: its place would hold a reference, also if the driver has refused
        // to unmap it.
        unsafe { calls.cuMemAddressFree(self.base, self.bytes) }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        match self.backend.upgrade() {
            Some(backend) => backend.deferred.unreserve(self.reserved),
            None if self.is_closed.load(Acquire) => drop(self.reserved.give_back(self.calls)),
            None => {}
        }
    }
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
        let most = (isize::MAX as u64) / granularity * granularity - granularity;
        if bytes == 0 || bytes > most {
            return Err(Error::Size { what: "size in bytes", asked: bytes, least: 1, most });
        }
        let bytes = bytes.next_multiple_of(granularity);
        let (with_gap, mut base) = ((bytes + granularity) as usize, 0);
        let _bound = home.bind()?;
        // SAFETY: the call writes one address, to a local variable.
        unsafe { home.calls.cuMemAddressReserve(&raw mut base, with_gap, granularity as usize, 0, 0) }?;
        let reserved = Reserved { base, bytes: with_gap };
        let held = Addresses { backend: Arc::downgrade(self), is_closed: Arc::clone(&self.is_closed), calls: home.calls, reserved };
        Ok(AddressRange::new(self.id, device, DeviceAddress::new(base), bytes, granularity, Box::new(held)))
    }

    pub(super) fn map_part(&self, range: &AddressRange, offset: u64, bytes: u64) -> Result<Block> {
        range.held::<Addresses>(self.id)?;
        let home = self.device(range.device())?;
        let place = range.occupy(offset, bytes)?;
        let request = range.request(bytes)?;
        let (address, number) = address_of(&place)?;
        let _no_launches = self.block_launches();
        self.check_no_kernels()?;
        let _bound = home.bind()?;
        let handle = self.create(home, &request)?;
        let _mapping = home.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err((error, is_mapped)) = self.attach(home, handle, address, bytes) {
            // SAFETY: the handle was just created, and is used no further.
            let _ = unsafe { home.calls.cuMemRelease(handle) };
            if is_mapped {
                mem::forget(place);
            }
            return Err(self.explain(error, home, &request));
        }
        let part = Range::of(&request, number, Owner::Part(Part::new(handle, place)));
        Ok(self.list_range(address, Range { joins: true, ..part }))
    }

    /// # Safety
    ///
    /// Nothing uses the block.
    pub(super) unsafe fn move_part(&self, block: &mut Block, offset: u64) -> Result<()> {
        let (from, bytes) = (block.address(), block.layout.size() as u64);
        let foreign = || Error::Foreign { call: "remap", address: from, layouts: None };
        let range = match self.ranges.read().live_owner(block) {
            Some(Owner::Part(part)) => part.place.range().clone(),
            _ => return Err(foreign()),
        };
        range.held::<Addresses>(self.id)?;
        let (home, target) = (self.device(range.device())?, range.occupy(offset, bytes)?);
        let ((to, number), request) = (address_of(&target)?, range.request(bytes)?);
        let _no_launches = self.block_launches();
        self.check_no_kernels()?;
        let _bound = home.bind()?;
        let _mapping = home.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_lost = false;
        let [old, new] = [from, to].map(|address| Address::Device(DeviceAddress::new(address)));
        // Around the removal from the list, which forgets the block's taints.
        let moved = self.ranges.taints().carry(old, new, bytes, || {
            self.ranges.kill(block).map_err(|_| foreign())?;
            let range = self.ranges.remove(block).ok_or_else(foreign)?;
            let Owner::Part(Part { handle, place }) = range.owner else { return Err(foreign()) };
            let source = ManuallyDrop::into_inner(place);
            let list = |address: u64, number, place| {
                self.ranges.insert(address, Range { place: number, owner: Owner::Part(Part::new(handle, place)), is_dead: false, ..range });
            };
            // SAFETY: the whole block is mapped there, it is not listed, and the caller promises that nothing uses it.
            if let Err(error) = unsafe { home.calls.cuMemUnmap(from, bytes as usize) } {
                list(from, range.place, source);
                return Err(error);
            }
            let Err((error, is_mapped)) = self.attach(home, handle, to, bytes) else {
                list(to, number, target);
                return Ok(());
            };
            if is_mapped {
                mem::forget(target);
            } else {
                match self.attach(home, handle, from, bytes) {
                    Ok(()) => {
                        list(from, range.place, source);
                        return Err(error);
                    }
                    Err((_, true)) => mem::forget(source),
                    Err((_, false)) => {}
                }
            }
            is_lost = true;
            self.counts.of(range.location).freed(bytes);
            // SAFETY: the block is gone, and the handle with it.
            let _ = unsafe { home.calls.cuMemRelease(handle) };
            Err(self.explain(error, home, &request))
        });
        match &moved {
            Ok(()) => block.device_address = Some(DeviceAddress::new(to)),
            Err(_) if is_lost => {
                self.ranges.taints().remove(old, bytes);
                *block = Block::empty(request.location, request.layout.align());
            }
            Err(_) => {}
        }
        moved
    }

    /// Frees a part, whose range was removed.
    pub(super) fn release_part(&self, home: &Device, part: Part, bytes: u64) -> Result<()> {
        let Part { handle, place } = part;
        // SAFETY: the whole part is mapped there; its range was removed after its uses.
        let unmapped = unsafe { home.calls.cuMemUnmap(place.address().get(), bytes as usize) };
        if unmapped.is_ok() {
            drop(ManuallyDrop::into_inner(place));
        }
        // SAFETY: the part is consumed, so its handle is released once.
        let released = unsafe { home.calls.cuMemRelease(handle) };
        unmapped.and(released)
    }

    /// Frees the parts that are not freed yet. No operation is incomplete.
    pub(super) fn release_all_parts(&self) {
        let parts: Vec<Block> = {
            let ranges = self.ranges.read();
            ranges.iter().filter(|(_, range)| matches!(range.owner, Owner::Part(_))).map(|(&address, range)| range.block(address)).collect()
        };
        for range in parts.iter().filter_map(|block| self.ranges.remove(block)) {
            // Memory that the driver refuses to free is freed at the end of the process.
            let _ = self.release(range);
        }
    }

    /// Sets the access of `device` to the listed parts of `other`, whose [`mapping`](Device::mapping) the caller holds.
    pub(super) fn set_access_to_parts(&self, other: &Device, device: u32, flags: i32) -> Result<()> {
        let access = [Access { location: ON_A_DEVICE, device: device.cast_signed(), flags }];
        // Held during the calls: a listed part is mapped.
        let ranges = self.ranges.read();
        let mut parts = ranges.iter().filter(|(_, range)| range.device == other.ordinal && matches!(range.owner, Owner::Part(_)));
        parts.try_for_each(|(&address, range)| set_access(other, address, range.bytes(), &access))
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

    /// Maps a handle, and lets its device and the peers access it. A failure leaves it unmapped, unless it says otherwise: then the caller forgets the place.
    fn attach(&self, home: &Device, handle: u64, address: u64, bytes: u64) -> Result<(), (Error, bool)> {
        // SAFETY: the caller has the handle, which is mapped nowhere, and occupies the addresses.
        unsafe { home.calls.cuMemMap(address, bytes as usize, 0, handle, 0) }.map_err(|error| (error, false))?;
        let has_access = |device: &&Device| device.ordinal == home.ordinal || device.may_access(home.ordinal);
        let devices = self.opened().map(|device| &**device).filter(has_access);
        let access = devices.map(|device| Access { location: ON_A_DEVICE, device: device.ordinal.cast_signed(), flags: READ_WRITE });
        set_access(home, address, bytes, &access.collect::<Vec<_>>()).map_err(|error| {
            // SAFETY: just mapped, and used by nothing.
            let unmapped = unsafe { home.calls.cuMemUnmap(address, bytes as usize) };
            (error, unmapped.is_err())
        })
    }
}

fn set_access(home: &Device, address: u64, bytes: u64, access: &[Access]) -> Result<()> {
    // SAFETY: the part is mapped at these addresses. The call reads `access`, which outlives it.
    unsafe { home.calls.cuMemSetAccess(address, bytes as usize, access.as_ptr(), access.len()) }
}

/// Returns a place's address, also as the number that a range has. The host never dereferences it.
fn address_of(place: &Place) -> Result<(u64, NonNull<u8>)> {
    let address = place.address().get();
    let number = NonNull::new(ptr::without_provenance_mut(address as usize));
    Ok((address, number.ok_or(Error::Unsupported { what: "memory at address 0" })?))
}
