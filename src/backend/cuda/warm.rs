//! The first use of what the driver loads lazily.
//!
//! The driver has kernels and engines of its own, for fills, copies within a device and growing a pool. Loading one may wait for every
//! running kernel, so each is used once when a device is opened.

use core::ffi::c_void;
use core::ptr;

use cudarc::driver::sys::CUdeviceptr;

use super::device::{Device, Lane};
use crate::Result;

/// Half of the memory: larger than what the driver fills or copies by other means.
const HALF: usize = 256 << 10;

unsafe extern "C" fn nothing(_: *mut c_void) {}

impl Device {
    /// Where a call fails, the first real use reports the error.
    pub fn warm_up(&self) {
        let mut address = 0;
        let allocated = self.now(|lane| match &self.pool {
            Some(pool) => pool.take(2 * HALF, lane.stream()).map(|memory| address = memory),
            // SAFETY: writes one address.
            None => unsafe { self.calls.cuMemAlloc_v2(&raw mut address, 2 * HALF) },
        });
        if address == 0 {
            return;
        }
        let _ = allocated.and_then(|()| self.now(|lane| self.use_all(lane, address)));
        // True if the call succeeded, even if waiting for it failed.
        let free = || {
            let mut is_freed = false;
            let _ = self.now(|lane| {
                let freed = match self.pool {
                    // SAFETY: allocated above, in use no more, and not freed yet.
                    Some(_) => unsafe { self.calls.cuMemFreeAsync(address, lane.stream()) },
                    // SAFETY: as above.
                    None => unsafe { self.calls.cuMemFree_v2(address) },
                };
                is_freed = freed.is_ok();
                freed
            });
            is_freed
        };
        // A driver that fails twice has lost the context, whose end frees the memory.
        if !free() {
            free();
        }
    }

    fn use_all(&self, lane: &Lane, address: CUdeviceptr) -> Result<()> {
        let (calls, stream, word) = (self.calls, lane.stream(), lane.word().as_ptr());
        let half = address + HALF as u64;
        // SAFETY: the lane's own word, on which nothing is queued.
        unsafe { word.write(0) };
        // SAFETY: within the memory, which is freed later; the word is the lane's until it is synchronised. Each call is made even if an
        // earlier one failed.
        let outcomes = unsafe {
            [
                calls.cuMemsetD8Async(address, 0, 2 * HALF, stream),
                calls.cuMemsetD32Async.map_or(Ok(()), |_| calls.cuMemsetD32Async(address, 0, HALF / 4, stream)),
                calls.cuMemcpyDtoDAsync_v2(half, address, HALF, stream),
                calls.cuMemcpyHtoDAsync_v2(address, word.cast(), size_of::<u64>(), stream),
                calls.cuMemcpyDtoHAsync_v2(word.cast(), address, size_of::<u64>(), stream),
                if self.facts.writes_words { calls.cuStreamWriteValue64_v2(stream, address, 0, 0) } else { Ok(()) },
                calls.cuLaunchHostFunc.map_or(Ok(()), |_| calls.cuLaunchHostFunc(stream, nothing, ptr::null_mut())),
            ]
        };
        outcomes.into_iter().collect()
    }
}
