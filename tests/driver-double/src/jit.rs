//! [`Log`]: the caller's buffer for errors of an image.

use std::ffi::c_void;

use crate::code::{Answer, Code};

/// `CU_JIT_INFO_LOG_BUFFER`, and its size after it.
pub const INFO_LOG: u32 = 3;
/// `CU_JIT_ERROR_LOG_BUFFER`, and its size after it.
pub const ERROR_LOG: u32 = 5;

/// INVARIANT: `buffer` is null or valid for writes of `len` bytes, and `written` for a write, during the call, as the caller promised.
pub struct Log {
    buffer: *mut u8,
    len: usize,
    /// Where is said how many bytes were written: the place of the size.
    written: *mut usize,
}

impl Log {
    /// The log whose buffer is option `buffer` and whose size is the next, if both are there.
    ///
    /// # Safety
    ///
    /// Both lists are null, which is refused, or `count` long, and mean what their options say.
    pub unsafe fn find(count: u32, options: *const u32, values: *mut *mut c_void, buffer: u32) -> Answer<Option<Self>> {
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(Code::INVALID_VALUE);
        }
        let place = |option: u32| {
            // SAFETY: the caller's promise.
            let index = (0..count as usize).find(|&i| unsafe { options.add(i).read() } == option)?;
            Some(values.wrapping_add(index))
        };
        let (Some(buffer), Some(len)) = (place(buffer), place(buffer + 1)) else { return Ok(None) };
        let written = len.cast::<usize>();
        // SAFETY: the caller's promise.
        let buffer = unsafe { buffer.read() }.cast();
        // SAFETY: as above; a number in the place of a pointer.
        let len = unsafe { written.read() };
        Ok(Some(Self { buffer, len, written }))
    }

    /// Writes as much of a text as there is place for, and its end.
    pub fn write(&self, text: &str) {
        if self.buffer.is_null() || self.len == 0 {
            return;
        }
        let bytes = &text.as_bytes()[..text.len().min(self.len - 1)];
        // SAFETY: less than the invariant's bytes.
        unsafe { self.buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: the last of them.
        unsafe { self.buffer.add(bytes.len()).write(0) };
        // SAFETY: the invariant.
        unsafe { self.written.write(bytes.len()) };
    }
}
