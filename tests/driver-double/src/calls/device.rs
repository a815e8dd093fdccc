//! The driver and its one device.

use std::ffi::{CStr, c_char};

use crate::call::{give, give_text};
use crate::code::{Answer, Code};
use crate::kernel::{BLOCKS_EACH, MULTIPROCESSORS};
use crate::space::TOTAL;

/// As CUDA 12.8's.
const VERSION: i32 = 12080;
const DEVICE_NAME: &CStr = c"ringmem driver double, not a GPU";

/// Numbers of `CUdevice_attribute`; what is not here is 0.
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024),                     // MAX_THREADS_PER_BLOCK
    (2, 1024),                     // MAX_BLOCK_DIM_X
    (5, i32::MAX),                 // MAX_GRID_DIM_X
    (10, 32),                      // WARP_SIZE
    (13, 1_000_000),               // CLOCK_RATE, kHz
    (16, MULTIPROCESSORS as i32),  // MULTIPROCESSOR_COUNT
    (19, 1),                       // CAN_MAP_HOST_MEMORY
    (31, 1),                       // CONCURRENT_KERNELS
    (36, 1_000_000),               // MEMORY_CLOCK_RATE, kHz
    (37, 64),                      // GLOBAL_MEMORY_BUS_WIDTH, bits
    (39, BLOCKS_EACH as i32 * 32), // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 2),                       // ASYNC_ENGINE_COUNT
    (41, 1),                       // UNIFIED_ADDRESSING
    (75, 9),                       // COMPUTE_CAPABILITY_MAJOR
    (76, 0),                       // COMPUTE_CAPABILITY_MINOR
    (86, 0),                       // HOST_NATIVE_ATOMIC_SUPPORTED
    (89, 1),                       // CONCURRENT_MANAGED_ACCESS
    (91, 1),                       // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (92, 1),                       // CAN_USE_STREAM_MEM_OPS
    (93, 1),                       // CAN_USE_64_BIT_STREAM_MEM_OPS
    (99, 1),                       // HOST_REGISTER_SUPPORTED
    (106, BLOCKS_EACH as i32),     // MAX_BLOCKS_PER_MULTIPROCESSOR
];

/// There is one, and its handle is its ordinal.
fn only(device: i32) -> Answer {
    if device == 0 { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}

calls! {
    Nothing fn cuInit(flags: u32) |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.initialise()
    }

    Nothing fn cuDriverGetVersion(version: *mut i32) |_| {
        // SAFETY: the caller's promise.
        unsafe { give(version, VERSION) }
    }

    Nothing fn cuGetErrorName(error: u32, name: *mut *const c_char) |_| {
        let known = Code::known(error);
        // SAFETY: the caller's promise.
        unsafe { give(name, known.map_or(std::ptr::null(), |code| code.name().as_ptr()))? };
        known.map(drop).ok_or(Code::INVALID_VALUE)
    }

    Nothing fn cuGetErrorString(error: u32, text: *mut *const c_char) |_| {
        let known = Code::known(error);
        // SAFETY: the caller's promise.
        unsafe { give(text, known.map_or(std::ptr::null(), |code| code.text().as_ptr()))? };
        known.map(drop).ok_or(Code::INVALID_VALUE)
    }

    Init fn cuDeviceGetCount(count: *mut i32) |_| {
        // SAFETY: the caller's promise.
        unsafe { give(count, 1) }
    }

    Init fn cuDeviceGet(device: *mut i32, ordinal: i32) |_| {
        only(ordinal)?;
        // SAFETY: the caller's promise.
        unsafe { give(device, ordinal) }
    }

    Init fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) |_| {
        only(device)?;
        // SAFETY: the caller's promise.
        unsafe { give_text(name, len, DEVICE_NAME) }
    }

    Init fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) |_| {
        only(device)?;
        // SAFETY: the caller's promise.
        unsafe { give(bytes, TOTAL as usize) }
    }

    Init fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) |_| {
        only(device)?;
        let known = ATTRIBUTES.iter().find(|row| row.0 == attribute);
        // SAFETY: the caller's promise.
        unsafe { give(value, known.map_or(0, |row| row.1)) }
    }

    Init fn cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32) |_| {
        only(device)?;
        // SAFETY: the caller's promise.
        unsafe { give_text(id, len, c"0000:db:00.0") }
    }

    Init fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) |_| {
        only(device)?;
        // SAFETY: the caller's promise.
        unsafe { give(uuid, *b"not a GPU:double") }
    }
}
