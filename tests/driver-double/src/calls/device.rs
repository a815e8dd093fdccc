use std::ffi::{CStr, CString, c_char};

use crate::code::Code;
use crate::entry::{give, give_text};

const DEVICE_NAME: &CStr = c"ringmem driver double, not a GPU";

calls! {
    Nothing fn cuInit(flags: u32) |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.initialise()
    }

    Nothing fn cuDriverGetVersion(version: *mut i32) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass a `version` that is valid for a write; null is rejected.
        unsafe { give(version, driver.settings.version) }
    }

    Nothing fn cuGetErrorName(error: u32, name: *mut *const c_char) |_| {
        let known = Code::known(error);
        // SAFETY: the driver's documentation obliges the caller to pass a `name` that is valid for a write; null is rejected.
        unsafe { give(name, known.map_or(std::ptr::null(), |code| code.name().as_ptr()))? };
        known.map(drop).ok_or(Code::INVALID_VALUE)
    }

    Nothing fn cuGetErrorString(error: u32, text: *mut *const c_char) |_| {
        let known = Code::known(error);
        // SAFETY: the driver's documentation obliges the caller to pass a `text` that is valid for a write; null is rejected.
        unsafe { give(text, known.map_or(std::ptr::null(), |code| code.text().as_ptr()))? };
        known.map(drop).ok_or(Code::INVALID_VALUE)
    }

    Init fn cuDeviceGetCount(count: *mut i32) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass a `count` that is valid for a write; null is rejected.
        unsafe { give(count, driver.devices.len() as i32) }
    }

    Init fn cuDeviceGet(device: *mut i32, ordinal: i32) |driver| {
        driver.device(ordinal)?;
        // SAFETY: the driver's documentation obliges the caller to pass a `device` that is valid for a write; null is rejected.
        unsafe { give(device, ordinal) }
    }

    Init fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) |driver| {
        driver.device(device)?;
        // SAFETY: the driver's documentation obliges the caller to pass a `name` that is valid for writes of `len` bytes; null is rejected.
        unsafe { give_text(name, len, DEVICE_NAME) }
    }

    Init fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) |driver| {
        let total = driver.device(device)?.total;
        // SAFETY: the driver's documentation obliges the caller to pass a `bytes` that is valid for a write; null is rejected.
        unsafe { give(bytes, total as usize) }
    }

    Init fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) |driver| {
        driver.device(device)?;
        // SAFETY: the driver's documentation obliges the caller to pass a `value` that is valid for a write; null is rejected.
        unsafe { give(value, driver.settings.attributes.value(attribute).ok_or(Code::INVALID_VALUE)?) }
    }

    Init fn cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32) |driver| {
        let ordinal = driver.device(device)?.ordinal;
        let text = CString::new(format!("0000:{:02x}:00.0", 0xA0 + ordinal)).map_err(|_| Code::UNKNOWN)?;
        // SAFETY: the driver's documentation obliges the caller to pass an `id` that is valid for writes of `len` bytes; null is rejected.
        unsafe { give_text(id, len, &text) }
    }

    Init fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) |driver| {
        let mut own = *b"not a GPU:double";
        own[15] ^= driver.device(device)?.ordinal as u8;
        // SAFETY: the driver's documentation obliges the caller to pass a `uuid` that is valid for a write of 16 bytes; null is rejected.
        unsafe { give(uuid, own) }
    }
}
