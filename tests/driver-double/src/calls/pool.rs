use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::attributes::MEMORY_POOLS_SUPPORTED;
use crate::block::{Block, Kind};
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry::give;
use crate::operation::Operation;
use crate::ordered::Ordered;
use crate::pool::Pool;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, the only one of pools and of physical memory.
pub const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: u32 = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    /// `CUmemLocationType`.
    pub kind: u32,
    /// A device's ordinal.
    pub id: i32,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug)]
pub struct PoolProps {
    /// `CUmemAllocationType`.
    pub allocation: u32,
    /// `CUmemAllocationHandleType`.
    pub handles: u32,
    /// Location of the memory.
    pub location: Location,
    /// Windows only.
    pub security: *mut c_void,
    /// Limit in bytes, or 0.
    pub limit: usize,
    /// Not modelled.
    pub rest: [u8; 56],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The device or host with access.
    pub location: Location,
    /// 0 none, 1 reads, 3 all.
    pub flags: u32,
}

const _: () = assert!(size_of::<PoolProps>() == 88 && size_of::<Access>() == 12);

/// # Safety
///
/// `address` is null, which is rejected, or valid for a write.
unsafe fn allocate(driver: &Driver, pool: Arc<Pool>, address: *mut u64, bytes: usize, stream: usize) -> Answer {
    if address.is_null() || bytes == 0 || pool.state().is_destroyed {
        return Err(Code::INVALID_VALUE);
    }
    let device = &driver.devices[pool.device as usize];
    let len = bytes as u64;
    let (charge, after) = match pool.take(device, len) {
        Ok(()) => (len, None),
        Err(error) => pool.take_from_queued_free(len).map(|(charge, free)| (charge, Some(free))).ok_or(error)?,
    };
    let undo = |_: &Code| pool.give_back(device, charge);
    let mut block = Block::new(Kind::Ordered, pool.device, len).inspect_err(undo)?;
    block.ordered = Some(Ordered::new(Arc::clone(&pool), charge));
    let block = Arc::new(block);
    driver.engine.queue(stream, Operation::Allocate(Arc::clone(&block)), after).inspect_err(undo)?;
    // SAFETY: not null; the caller promises that `address` is valid for a write.
    unsafe { give(address, driver.space.place(&block)) }
}

enum Attribute {
    Reuse(usize),
    Threshold,
    Reserved,
    ReservedHigh,
    Used,
    UsedHigh,
}

fn attribute(number: u32) -> Answer<Attribute> {
    Ok(match number {
        1..=3 => Attribute::Reuse(number as usize - 1),
        4 => Attribute::Threshold,
        5 => Attribute::Reserved,
        6 => Attribute::ReservedHigh,
        7 => Attribute::Used,
        8 => Attribute::UsedHigh,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Returns how often a pool took memory from its device (`back` 0) or returned some (1).
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_pool_moves(pool: usize, back: u32) -> u64 {
    let pool = Driver::the().pools.find(pool);
    pool.map_or(0, |pool| pool.moves.get(back as usize).map_or(0, |moves| moves.load(Relaxed)))
}

calls! {
    Context fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) |driver| {
        driver.demand(MEMORY_POOLS_SUPPORTED)?;
        let device = driver.engine.stream(stream)?.device;
        let pool = driver.pools.find(driver.devices[device as usize].pool)?;
        // SAFETY: the driver's documentation obliges the caller to pass an `address` that is valid for a write; null is rejected.
        unsafe { allocate(driver, pool, address, bytes, stream) }
    }

    Context fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: usize, stream: usize) |driver| {
        driver.demand(MEMORY_POOLS_SUPPORTED)?;
        // SAFETY: the driver's documentation obliges the caller to pass an `address` that is valid for a write; null is rejected.
        unsafe { allocate(driver, driver.pools.find(pool)?, address, bytes, stream) }
    }

    Context fn cuMemFreeAsync(address: u64, stream: usize) |driver| {
        let Some(block) = driver.space.begins(address, Kind::Ordered) else {
            driver.space.resolve(address, 1)?;
            return Err(Code::INVALID_VALUE);
        };
        driver.space.resolve(address, 1)?;
        let ticket = driver.engine.queue(stream, Operation::Free { address, block: Arc::clone(&block) }, None)?;
        if let Some(ordered) = &block.ordered {
            ordered.pool.queued_free(&block, &ticket);
        }
        Ok(())
    }

    Init fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: i32) |driver| {
        let device = driver.device(device)?;
        driver.demand(MEMORY_POOLS_SUPPORTED)?;
        // SAFETY: the driver's documentation obliges the caller to pass a `pool` that is valid for a write; null is rejected.
        unsafe { give(pool, device.pool) }
    }

    Init fn cuMemPoolCreate(pool: *mut usize, properties: *const PoolProps) |driver| {
        driver.demand(MEMORY_POOLS_SUPPORTED)?;
        if pool.is_null() || properties.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the driver's documentation obliges the caller to pass `properties` that are valid for a read.
        let asked = unsafe { properties.read() };
        if asked.allocation != PINNED || asked.location.kind != LOCATION_DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        if asked.handles != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = driver.device(asked.location.id)?.ordinal;
        let limit = if asked.limit == 0 { u64::MAX } else { asked.limit as u64 };
        // SAFETY: not null; the driver's documentation obliges the caller to pass a `pool` that is valid for a write.
        unsafe { give(pool, driver.pools.insert(Pool::new(device, false, limit))) }
    }

    Init fn cuMemPoolDestroy(pool: usize) |driver| {
        if driver.pools.find(pool)?.is_default {
            return Err(Code::INVALID_VALUE);
        }
        let pool = driver.pools.remove(pool)?;
        pool.state().is_destroyed = true;
        pool.keep(&driver.devices[pool.device as usize], 0);
        Ok(())
    }

    Init fn cuMemPoolTrimTo(pool: usize, bytes: usize) |driver| {
        let pool = driver.pools.find(pool)?;
        pool.keep(&driver.devices[pool.device as usize], bytes as u64);
        Ok(())
    }

    Init fn cuMemPoolGetAttribute(pool: usize, number: u32, value: *mut c_void) |driver| {
        let pool = driver.pools.find(pool)?;
        let state = pool.state();
        let word = match attribute(number)? {
            // SAFETY: the driver's documentation obliges the caller to pass a `value` of this attribute's size, four bytes; null is
            // rejected.
            Attribute::Reuse(index) => return unsafe { give(value.cast::<i32>(), state.reuse[index]) },
            Attribute::Threshold => state.threshold,
            Attribute::Reserved => state.reserved,
            Attribute::ReservedHigh => state.reserved_high,
            Attribute::Used => state.used,
            Attribute::UsedHigh => state.used_high,
        };
        // SAFETY: the driver's documentation obliges the caller to pass a `value` of this attribute's size, eight bytes; null is rejected.
        unsafe { give(value.cast::<u64>(), word) }
    }

    Init fn cuMemPoolSetAttribute(pool: usize, number: u32, value: *mut c_void) |driver| {
        let pool = driver.pools.find(pool)?;
        let attribute = attribute(number)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = pool.state();
        if let Attribute::Reuse(index) = attribute {
            // SAFETY: not null; the driver's documentation obliges the caller to pass a `value` of this attribute's size, four bytes.
            state.reuse[index] = unsafe { value.cast::<i32>().read_unaligned() };
            return Ok(());
        }
        // SAFETY: not null; the driver's documentation obliges the caller to pass a `value` of this attribute's size, eight bytes.
        let word = unsafe { value.cast::<u64>().read_unaligned() };
        match attribute {
            Attribute::Threshold => state.threshold = word,
            Attribute::ReservedHigh if word == 0 => state.reserved_high = state.reserved,
            Attribute::UsedHigh if word == 0 => state.used_high = state.used,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    Init fn cuMemPoolSetAccess(pool: usize, map: *const Access, count: usize) |driver| {
        let pool = driver.pools.find(pool)?;
        if map.is_null() && count > 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut access = pool.state().access;
        for i in 0..count {
            // SAFETY: not null; the driver's documentation obliges the caller to pass `count` entries.
            let entry = unsafe { map.add(i).read() };
            let who = driver.device(entry.location.id)?.ordinal;
            if entry.location.kind != LOCATION_DEVICE || ![0, 1, 3].contains(&entry.flags) || (who == pool.device && entry.flags != 3) {
                return Err(Code::INVALID_VALUE);
            }
            if who != pool.device && entry.flags != 0 && !driver.settings.peers.can_reach(who, pool.device) {
                return Err(Code::INVALID_DEVICE);
            }
            access = if entry.flags == 0 { access & !(1 << who) } else { access | 1 << who };
        }
        pool.state().access = access;
        Ok(())
    }
}
