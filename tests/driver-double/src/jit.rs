//! [`Log`]: the caller's buffer for an image's errors.

use std::ffi::c_void;

use crate::code::{Answer, Code};

pub const INFO_LOG: u32 = 3;
pub const ERROR_LOG: u32 = 5;

/// INVARIANT: during the call, `buffer` is null or valid for writes of `len` bytes, and `written` is valid for a write: the caller of
/// `cuModuleLoadDataEx` promises both.
pub struct Log {
    buffer: *mut u8,
    len: usize,
    written: *mut usize,
}

impl Log {
    /// Finds the log of option `buffer`, whose size is the next option.
    ///
    /// # Safety
    ///
    /// Both lists are null, which is rejected, or have `count` valid values: a log's buffer is null or has the size that the next option
    /// names.
    pub unsafe fn find(count: u32, options: *const u32, values: *mut *mut c_void, buffer: u32) -> Answer<Option<Self>> {
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(Code::INVALID_VALUE);
        }
        let place = |option: u32| {
            // SAFETY: not null unless there are no options; the caller promises `count` options, and `i` is below it.
            let index = (0..count as usize).find(|&i| unsafe { options.add(i).read() } == option)?;
            Some(values.wrapping_add(index))
        };
        let (Some(buffer), Some(len)) = (place(buffer), place(buffer + 1)) else { return Ok(None) };
        let written = len.cast::<usize>();
        // SAFETY: the option is one of `count`, and the caller promises as many values.
        let buffer = unsafe { buffer.read() }.cast();
        // SAFETY: the caller promises `count` values, of which this is one; it is a number in a pointer's place.
        let len = unsafe { written.read() };
        Ok(Some(Self { buffer, len, written }))
    }

    pub fn write(&self, text: &str) {
        if self.buffer.is_null() || self.len == 0 {
            return;
        }
        let bytes = &text.as_bytes()[..text.len().min(self.len - 1)];
        // SAFETY: fewer than the invariant's bytes.
        unsafe { self.buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: the last of them.
        unsafe { self.buffer.add(bytes.len()).write(0) };
        // SAFETY: by the invariant `written` is valid for a write.
        unsafe { self.written.write(bytes.len()) };
    }
}
