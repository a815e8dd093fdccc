//! Memory of the device, and memory of the host that the device knows.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::block::Kind;
use crate::call::give;
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::space::TOTAL;

/// `CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP | WRITECOMBINED`. None changes anything: all pinned memory is both of the first, and write-combining
/// is not modelled.
const HOST_ALLOC_FLAGS: u32 = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP | READ_ONLY`.
const HOST_REGISTER_FLAGS: u32 = 0b1011;

/// Takes a block back when nothing can be using it any more: waits for every kernel, as a real driver may.
fn take_back(driver: &Driver, address: u64, kind: Kind, otherwise: Code) -> Answer {
    if !driver.space.has(address, kind) {
        return Err(otherwise);
    }
    driver.engine.idle(driver.settings.deadline);
    driver.space.remove(address, kind).map(drop)
}

fn allowed(flags: u32, known: u32) -> Answer {
    if flags & !known == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

calls! {
    Context fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |driver| {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { give(address, driver.space.allocate(Kind::Device, bytes as u64)?) }
    }

    Context fn cuMemFree_v2(address: u64) |driver| {
        take_back(driver, address, Kind::Device, Code::INVALID_VALUE)
    }

    Context fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        // SAFETY: the caller's promise.
        unsafe { give(free, (TOTAL - driver.space.used()) as usize)? };
        // SAFETY: as above.
        unsafe { give(total, TOTAL as usize) }
    }

    Context fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: u32) |driver| {
        allowed(flags, HOST_ALLOC_FLAGS)?;
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let address = driver.space.allocate_host(bytes as u64)?;
        let place = driver.space.resolve(address, 0)?.place();
        // SAFETY: the caller's promise.
        unsafe { give(pointer, place.as_ptr().cast()) }
    }

    Context fn cuMemFreeHost(pointer: *mut c_void) |driver| {
        take_back(driver, pointer.addr() as u64, Kind::Pinned, Code::INVALID_VALUE)
    }

    Context fn cuMemHostGetDevicePointer_v2(address: *mut u64, pointer: *mut c_void, flags: u32) |driver| {
        allowed(flags, 0)?;
        let known = driver.space.resolve(pointer.addr() as u64, 1)?;
        if !matches!(known.block.kind, Kind::Pinned | Kind::Registered) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { give(address, pointer.addr() as u64) }
    }

    Context fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32) |driver| {
        allowed(flags, HOST_REGISTER_FLAGS)?;
        driver.space.register(NonNull::new(pointer.cast()).ok_or(Code::INVALID_VALUE)?, bytes as u64)
    }

    Context fn cuMemHostUnregister(pointer: *mut c_void) |driver| {
        let refusal = if pointer.is_null() { Code::INVALID_VALUE } else { Code::HOST_MEMORY_NOT_REGISTERED };
        take_back(driver, pointer.addr() as u64, Kind::Registered, refusal)
    }
}
