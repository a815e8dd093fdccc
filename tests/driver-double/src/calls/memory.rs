use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::attributes::HOST_REGISTER_SUPPORTED;
use crate::block::{Block, Kind};
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry::give;
use crate::ordered::Ordered;

/// The third is write-combined, with another address on devices; its slow reads and late stores are not modelled.
const HOST_ALLOC_FLAGS: u32 = 7;
const DEVICE_MAP: u32 = 2;
const HOST_REGISTER_FLAGS: u32 = 0b1011;

/// Waits for every kernel that may use the block, as drivers may.
fn take_back(driver: &Driver, address: u64, kinds: &[Kind], otherwise: Code) -> Answer {
    let Some(block) = kinds.iter().find_map(|&kind| driver.space.begins(address, kind)) else {
        if driver.space.was_ordered(address) {
            driver.violations.of_call(&format!("frees {address:#x} a second time"));
        }
        return Err(otherwise);
    };
    if block.ordered.as_ref().is_some_and(Ordered::is_freed) {
        driver.violations.of_call(&format!("frees {address:#x}, which a stream was told to free"));
        return Err(otherwise);
    }
    if block.is_in_flight() {
        driver.violations.of_call(&format!("takes {address:#x} back while queued work uses it"));
    }
    let is_device = matches!(block.kind, Kind::Device | Kind::Ordered);
    driver.engine.idle(is_device.then_some(block.device), driver.settings.deadline);
    match block.kind {
        Kind::Ordered => driver.free_ordered(address, &block),
        Kind::Device if driver.space.remove(address).is_some() => driver.devices[block.device as usize].give_back(block.len),
        _ => drop(driver.space.remove(address)),
    }
    driver.settle();
    Ok(())
}

fn allowed(flags: u32, known: u32) -> Answer {
    if flags & !known == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

calls! {
    Context fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |driver| {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let (device, len) = (driver.current()?, bytes as u64);
        device.take(len)?;
        let block = Block::new(Kind::Device, device.ordinal, len).inspect_err(|_| device.give_back(len))?;
        // SAFETY: not null; the driver's documentation obliges the caller to pass an `address` that is valid for a write.
        unsafe { give(address, driver.space.place(&Arc::new(block))) }
    }

    Context fn cuMemFree_v2(address: u64) |driver| {
        take_back(driver, address, &[Kind::Device, Kind::Ordered, Kind::Managed], Code::INVALID_VALUE)
    }

    Context fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let (device, used) = (driver.current()?, driver.current()?.used());
        let taken = if used > 0 { used.saturating_add(driver.settings.tables) } else { 0 };
        // SAFETY: the driver's documentation obliges the caller to pass a `free` that is valid for a write; null is rejected.
        unsafe { give(free, device.total.saturating_sub(taken) as usize)? };
        // SAFETY: the driver's documentation obliges the caller to pass a `total` that is valid for a write; null is rejected.
        unsafe { give(total, device.total as usize) }
    }

    Context fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: u32) |driver| {
        allowed(flags, HOST_ALLOC_FLAGS)?;
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut block = Block::new(Kind::Pinned, driver.current()?.ordinal, bytes as u64)?;
        block.flags = flags;
        let place = block.place();
        driver.space.place_host(block);
        // SAFETY: not null; the driver's documentation obliges the caller to pass a `pointer` that is valid for a write.
        unsafe { give(pointer, place.as_ptr().cast()) }
    }

    Context fn cuMemFreeHost(pointer: *mut c_void) |driver| {
        take_back(driver, pointer.addr() as u64, &[Kind::Pinned], Code::INVALID_VALUE)
    }

    Context fn cuMemHostGetDevicePointer_v2(address: *mut u64, pointer: *mut c_void, flags: u32) |driver| {
        allowed(flags, 0)?;
        let known = driver.space.listed(pointer.addr() as u64, 1)?;
        if !matches!(known.block.kind, Kind::Pinned | Kind::Registered) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the driver's documentation obliges the caller to pass an `address` that is valid for a write; null is rejected.
        unsafe { give(address, driver.space.device_address(&known).ok_or(Code::INVALID_VALUE)?) }
    }

    Context fn cuMemHostGetFlags(flags: *mut u32, pointer: *mut c_void) |driver| {
        let known = driver.space.listed(pointer.addr() as u64, 1)?;
        if known.block.kind != Kind::Pinned {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the driver's documentation obliges the caller to pass `flags` that are valid for a write; null is rejected.
        unsafe { give(flags, known.block.flags | DEVICE_MAP) }
    }

    Context fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32) |driver| {
        allowed(flags, HOST_REGISTER_FLAGS)?;
        driver.demand(HOST_REGISTER_SUPPORTED)?;
        let place = NonNull::new(pointer.cast()).ok_or(Code::INVALID_VALUE)?;
        driver.space.register(Block::borrowed(Kind::Registered, driver.current()?.ordinal, place, bytes as u64))
    }

    Context fn cuMemHostUnregister(pointer: *mut c_void) |driver| {
        let refusal = if pointer.is_null() { Code::INVALID_VALUE } else { Code::HOST_MEMORY_NOT_REGISTERED };
        take_back(driver, pointer.addr() as u64, &[Kind::Registered], refusal)
    }
}
