use std::ffi::c_void;

use crate::attributes::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
use crate::calls::pool::{Access, LOCATION_DEVICE, Location, PINNED};
use crate::code::{Answer, Code};
use crate::device::Device;
use crate::driver::Driver;
use crate::entry::give;
use crate::virtual_memory::GRANULARITY;

/// The minimum and the recommended one are the same.
const GRANULARITY_OPTIONS: [u32; 2] = [0, 1];

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug)]
pub struct AllocationProps {
    /// `CUmemAllocationType`.
    pub allocation: u32,
    /// `CUmemAllocationHandleType`.
    pub handles: u32,
    /// Location of the memory.
    pub location: Location,
    /// Windows only.
    pub security: *mut c_void,
    /// Compression, RDMA and usage: not modelled.
    pub rest: [u8; 8],
}

const _: () = assert!(size_of::<AllocationProps>() == 32);

/// # Safety
///
/// `properties` is null, which is rejected, or valid for a read.
unsafe fn device(driver: &Driver, properties: *const AllocationProps) -> Answer<&Device> {
    if properties.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null; the caller promises that `properties` is valid for a read.
    let asked = unsafe { properties.read() };
    if asked.allocation != PINNED || asked.location.kind != LOCATION_DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    if asked.handles != 0 || asked.rest != [0; 8] {
        return Err(Code::NOT_SUPPORTED);
    }
    driver.device(asked.location.id)
}

/// `size` is not 0, and all numbers are multiples of the granularity.
fn check(size: usize, others: [u64; 2], flags: u64) -> Answer {
    let is_aligned = [size as u64].iter().chain(&others).all(|number| number.is_multiple_of(GRANULARITY));
    if size > 0 && is_aligned && flags == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

calls! {
    Init fn cuMemAddressReserve(address: *mut u64, size: usize, alignment: usize, hint: u64, flags: u64) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        check(size, [alignment as u64, hint], flags)?;
        if address.is_null() || alignment != 0 && !alignment.is_power_of_two() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the driver's documentation obliges the caller to pass an `address` that is valid for a write.
        unsafe { give(address, driver.virtual_memory.reserve(driver, size as u64, alignment as u64)?) }
    }

    Init fn cuMemAddressFree(address: u64, size: usize) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        driver.virtual_memory.free(driver, address, size as u64)
    }

    Init fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const AllocationProps, option: u32) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        // SAFETY: the driver's documentation obliges the caller to pass `properties` that are valid for a read; null is rejected.
        unsafe { device(driver, properties)? };
        if !GRANULARITY_OPTIONS.contains(&option) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the driver's documentation obliges the caller to pass a `granularity` that is valid for a write; null is rejected.
        unsafe { give(granularity, GRANULARITY as usize) }
    }

    Init fn cuMemCreate(handle: *mut u64, size: usize, properties: *const AllocationProps, flags: u64) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        // SAFETY: the driver's documentation obliges the caller to pass `properties` that are valid for a read; null is rejected.
        let device = unsafe { device(driver, properties)? };
        check(size, [0; 2], flags)?;
        if handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the driver's documentation obliges the caller to pass a `handle` that is valid for a write.
        unsafe { give(handle, driver.virtual_memory.create(device, size as u64)? as u64) }
    }

    Init fn cuMemRelease(handle: u64) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        driver.virtual_memory.release(driver, handle as usize)
    }

    Init fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        check(size, [address, 0], flags)?;
        if offset != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.virtual_memory.map(driver, address, size as u64, handle as usize)
    }

    Init fn cuMemUnmap(address: u64, size: usize) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        driver.virtual_memory.unmap(driver, address, size as u64)
    }

    Init fn cuMemSetAccess(address: u64, size: usize, list: *const Access, count: usize) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        if list.is_null() || count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let entries = (0..count).map(|i| {
            // SAFETY: not null; the driver's documentation obliges the caller to pass `count` entries.
            let entry = unsafe { list.add(i).read() };
            let device = driver.device(entry.location.id)?.ordinal;
            let is_known = entry.location.kind == LOCATION_DEVICE && [0, 1, 3].contains(&entry.flags);
            if is_known { Ok((device, entry.flags)) } else { Err(Code::INVALID_VALUE) }
        });
        driver.virtual_memory.set_access(driver, address, size as u64, &entries.collect::<Answer<Vec<_>>>()?)
    }

    Init fn cuMemGetAccess(flags: *mut u64, location: *const Location, address: u64) |driver| {
        driver.demand(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
        if location.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the driver's documentation obliges the caller to pass a `location` that is valid for a read.
        let location = unsafe { location.read() };
        let device = driver.device(location.id)?.ordinal;
        let block = driver.space.mapping(address).filter(|_| location.kind == LOCATION_DEVICE).ok_or(Code::INVALID_VALUE)?;
        let access = block.mapped.as_ref().map_or(0, |mapped| mapped.access(device));
        // SAFETY: the driver's documentation obliges the caller to pass `flags` that are valid for a write; null is rejected.
        unsafe { give(flags, access.into()) }
    }
}
